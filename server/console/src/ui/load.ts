/**
 * Load a module of the console.
 *
 * On the browser's own error, the router would reload the page, which shows a browser error while the service is unavailable.
 *
 * @throws Error if the service is unavailable or was upgraded.
 */
export const loadCode = <Module>(load: () => Promise<Module>): Promise<Module> =>
  load().catch(() => {
    throw new Error('The service did not send the code of this page. It may have been upgraded.')
  })
