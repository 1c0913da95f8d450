import { expect, test } from 'vitest'
import { environment, GUIDES, telemetryAddress } from './connect-guides'

const local = { otlp: 'http://127.0.0.1:4318', service: 'http://127.0.0.1:8420', needsToken: false }
const codes = (id: string, place = local): string[] => GUIDES.find((guide) => guide.id === id)!.steps.flatMap((step) => (step.code ? [step.code(place)] : []))

test('telemetry endpoint has the host of the page and the port of the settings', () => {
  expect(telemetryAddress({ hostname: 'queen.example' })).toBe('http://queen.example:4318')
  expect(telemetryAddress({ hostname: '127.0.0.1' }, { port: 8831 })).toBe('http://127.0.0.1:8831')
  expect(telemetryAddress({ hostname: '::1' }, { port: 0 })).toBe('http://[::1]:4318')
})

test('commands contain URLs only if they are not the defaults', () => {
  expect(codes('claude-code')).toEqual(['queenright connect claude-code', 'queenright connect claude-code --check'])
  expect(codes('gemini-cli', { otlp: 'http://h:1', service: 'http://h:2', needsToken: true })).toEqual([
    'queenright connect gemini --otlp-url http://h:1 --token-file reporter.token',
    'queenright connect gemini --check --url http://h:2',
  ])
})

test('commands contain a token only if one is required', () => {
  expect(environment(local)).not.toContain('HEADERS')
  expect(environment({ ...local, needsToken: true })).toContain('OTEL_EXPORTER_OTLP_HEADERS="Authorization=Bearer%20qrt_..."')
})

test('snippet that imports a package has its install command', () => {
  for (const guide of GUIDES) {
    const text = codes(guide.id).join('\n')
    if (text.includes('from queenright')) expect(text).toMatch(/pip install "queenright @ git\+https/)
  }
})

test('each guide has a unique name', () => {
  expect(new Set(GUIDES.map((guide) => guide.id)).size).toBe(GUIDES.length)
})
