import { describe, expect, it } from 'vitest'
import type { FiredFinding } from '../../api/schema'
import { compareFired, fromSlider, momentAddress, findMoment, findStepMoment, readAddress, readSettings, SLIDER, sliderRange, thresholdFault, toSlider, writeSettings } from './compare'

const fired = (kind: string, at: number): FiredFinding => ({ kind, at, severity: 'high', step_id: String(at), evidence: '', cleared_at: null, shadow: false }) as FiredFinding

describe('the difference', () => {
  it('says how much later the first one is', () => {
    expect(compareFired([fired('stall', 10), fired('stall', 40)], [fired('stall', 25)])).toMatchObject([{ kind: 'stall', later: 15 }])
  })

  it('says what fires in one evaluation only', () => {
    const found = compareFired([fired('stall', 10)], [fired('spending', 5)])
    expect(found.map(({ kind, before, after, later }) => [kind, !!before, !!after, later])).toEqual([['spending', false, true, null], ['stall', true, false, null]])
  })
})

describe('settings in the address', () => {
  it('are read as they were written', () => {
    expect(readSettings(writeSettings({ 'loops.window': 20, 'health_check.error_rate': 0.25 }))).toEqual({ 'loops.window': 20, 'health_check.error_rate': 0.25 })
  })

  it('leaves out what is not a number', () => {
    expect(readSettings('a:x,b,:3,c:4')).toEqual({ c: 4 })
  })
})

describe('a slider', () => {
  it('reaches both ends', () => {
    for (const [low, high] of [[1, 50], [10, 86_400], [0, 1]] as const) {
      expect(fromSlider(0, low, high, false)).toBe(low)
      expect(fromSlider(SLIDER, low, high, false)).toBe(high)
    }
  })

  it('is about the default, within what is allowed', () => {
    expect(sliderRange(300, 0, 31_536_000)).toEqual([15, 6000])
    expect(sliderRange(0.55, 0.5, 1)).toEqual([0.5, 1])
    expect(sliderRange(3, 1, null)).toEqual([1, 60])
  })

  it('spreads a wide range', () => {
    expect(toSlider(300, 10, 86_400)).toBeGreaterThan(300)
    expect(fromSlider(toSlider(300, 10, 86_400), 10, 86_400, true)).toBe(300)
  })
})

describe('the moment of a step', () => {
  const moments = [{ step_id: 'a', at: 1 }, { step_id: 'b', at: 5 }]

  it('is its own, or the last before its time', () => {
    expect(findStepMoment(moments, 'b', undefined)).toBe(1)
    expect(findStepMoment(moments, 'x', 4)).toBe(0)
    expect(findStepMoment(moments, 'x', undefined)).toBe(-1)
  })
})

describe('the address of a moment', () => {
  const moments = [{ step_id: 'a', at: 1 }, { step_id: 'b~1', at: 2.25 }, { step_id: 'a', at: 4 }, { step_id: 'b~1', at: 5 }]

  it('leads to each moment, also to those of the same step', () => {
    for (const [index, moment] of moments.entries()) {
      const { step_id, at } = readAddress(momentAddress(moment))
      expect(findMoment(moments, { step_id: step_id!, at: at! })).toBe(index)
    }
  })

  it('has no time if it is that of a step', () => {
    expect(readAddress('a')).toEqual({ step_id: 'a', at: undefined })
    expect(readAddress(undefined).step_id).toBe('')
  })

  it('leads to the time of a moment that a changed threshold took away', () => {
    expect(findMoment(moments, { step_id: 'gone', at: 3 })).toBe(1)
  })
})

describe('a typed threshold', () => {
  it('is refused with the reason and what is allowed', () => {
    expect(thresholdFault('5', 1, 100, true)).toBe('')
    expect(thresholdFault('0', 1, 100, true)).toBe('0 is not allowed; enter 1 to 100.')
    expect(thresholdFault('1e9', 1, 100, true)).toBe('1e9 is not allowed; enter 1 to 100.')
    expect(thresholdFault('-1', 0, null, false)).toBe('-1 is not allowed; enter at least 0.')
    expect(thresholdFault('', 1, 100, true)).toBe('a number is required, 1 to 100.')
    expect(thresholdFault('2.5', 1, 100, true)).toBe('it must be a whole number.')
  })
})
