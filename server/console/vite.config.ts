import react from '@vitejs/plugin-react'
import { defineConfig } from 'vite'

// The build is committed: `queenright` ships it, so that running it needs no Node.
export default defineConfig({
  base: '/console/',
  plugins: [react()],
  build: {
    outDir: '../queenright/server/pages/console',
    emptyOutDir: true,
    manifest: 'manifest.json',
    target: 'es2022',
    assetsInlineLimit: 0,
    // One style sheet, of 10 kB: a page whose code is loaded looks as it should.
    cssCodeSplit: false,
    modulePreload: { polyfill: false },
  },
  server: { proxy: { '/api': 'http://127.0.0.1:8420' } },
})
