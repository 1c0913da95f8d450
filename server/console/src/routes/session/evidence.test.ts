import { describe, expect, it } from 'vitest'
import type { Finding, Step } from '../../api/schema'
import { createAxis, findGaps, numberRepeats, findRepeats, windowAt, findWindows, addShadowFindings } from './evidence'

const step = (id: string, at: number, more: Partial<Step> = {}): Step => ({
  step_id: id, at, kind: 'tool', name: 'search', phase: 'done', started_at: at, ended_at: at, text: '', detail: '', tokens_in: 0,
  tokens_out: 0, cost_usd: null, signature: '', severity: '', ref: '', ...more,
} as Step)

describe('repeats', () => {
  const steps = [step('1', 1, { signature: 'a' }), step('2', 2, { signature: 'b' }), step('3', 3, { signature: 'a' }), step('4', 4), step('5', 5, { signature: 'a' })]

  it('counts repeated calls and omits single ones', () => {
    expect([...findRepeats(steps).values()]).toEqual([{ signature: 'a', name: 'search', count: 3, glyph: 0 }])
  })

  it('numbers the calls of each repeat', () => {
    expect([...numberRepeats(steps, findRepeats(steps))]).toEqual([['1', 1], ['3', 2], ['5', 3]])
  })
})

describe('windows', () => {
  const finding = (id: string, at: number, type: string, severity: string): Step => step(id, at, { kind: 'finding', name: 'doom_loop', type, severity })

  it('is one window for a finding that becomes more severe, until it is cleared', () => {
    const windows = findWindows([finding('1', 10, 'finding_opened', 'medium'), finding('2', 12, 'finding_opened', 'critical'), finding('3', 20, 'finding_cleared', 'critical')], null)
    expect(windows).toMatchObject([{ from: 10, to: 20, severity: 'critical', stepId: '1' }])
    expect(windowAt(windows, 15)?.kind).toBe('doom_loop')
    expect(windowAt(windows, 21)).toBeUndefined()
  })

  it('ends with the session', () => {
    expect(findWindows([finding('1', 10, 'finding_opened', 'high')], 30)[0]?.to).toBe(30)
  })

  it('begins when the condition began, as in the ticket', () => {
    expect(findWindows([{ ...finding('1', 10, 'finding_opened', 'high'), started_at: 3 }], null)[0]?.from).toBe(3)
  })
})

describe('gaps', () => {
  it('are at least ten seconds without activity', () => {
    const steps = [step('1', 0), step('2', 20), step('3', 21), step('4', 75)]
    expect([...findGaps(steps)]).toEqual([['4', 54], ['2', 20]])
  })

  it('do not include time in which a call runs', () => {
    const steps = [step('1', 0), step('2', 30), step('3', 80, { started_at: 5 })]
    expect([...findGaps(steps)]).toEqual([])
  })

  it('include time in which only the condition of a finding lasted', () => {
    const steps = [step('1', 0), step('2', 30, { kind: 'finding', phase: 'instant', started_at: 0 })]
    expect([...findGaps(steps)]).toEqual([['2', 30]])
  })
})

describe('axis', () => {
  it('is linear without pauses', () => {
    const axis = createAxis([0, 1, 2, 3, 4])
    expect(axis.place(2)).toBeCloseTo(0.5)
    expect(axis.time(0.25)).toBeCloseTo(1)
    expect(axis.breaks).toEqual([])
  })

  it('shortens a pause and lists it in its breaks', () => {
    const times = [...Array.from({ length: 50 }, (_, at) => at), ...Array.from({ length: 50 }, (_, at) => 10_000 + at)]
    const axis = createAxis(times)
    expect(axis.place(49)).toBeGreaterThan(0.4)
    expect(axis.place(10_000)).toBeLessThan(0.6)
    expect(axis.breaks).toHaveLength(1)
    expect(axis.time(axis.place(10_020))).toBeCloseTo(10_020)
  })

  it('accepts zero steps and one step', () => {
    expect(createAxis([]).place(5)).toBe(0)
    expect(createAxis([5]).time(1)).toBe(5)
  })
})

it('inserts findings of shadow detectors at their start times', () => {
  const steps = [step('1', 1), step('2', 5)]
  const withShadows = addShadowFindings(steps, [{ kind: 'grinding', severity: 'medium', evidence: '60 calls', since: 3 } as Finding])

  expect(withShadows.map(({ step_id }) => step_id)).toEqual(['1', 'shadow-grinding', '2'])
  expect(addShadowFindings(steps, [])).toBe(steps)
})
