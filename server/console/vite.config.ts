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
    modulePreload: { polyfill: false },
  },
  server: { proxy: { '/api': 'http://127.0.0.1:8420' } },
})
