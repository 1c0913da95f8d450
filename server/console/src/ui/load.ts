/**
 * Load a module of the console.
 *
 * The router reloads the page at the browser's own error, which shows the browser's page while the service is away.
 *
 * @throws Error that says so, if the service is away or was upgraded.
 */
export const loadCode = <Module>(load: () => Promise<Module>): Promise<Module> =>
  load().catch(() => {
    throw new Error('The service did not send the code of this page. It may have been upgraded.')
  })
