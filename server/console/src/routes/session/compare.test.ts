import { describe, expect, it } from 'vitest'
import type { FiredFinding } from '../../api/schema'
import { compareFired, fromSlider, momentAddress, findMoment, findStepMoment, readAddress, readSettings, SLIDER, sliderRange, thresholdFault, toSlider, writeSettings } from './compare'

const fired = (kind: string, at: number): FiredFinding => ({ kind, at, severity: 'high', step_id: String(at), evidence: '', cleared_at: null, shadow: false }) as FiredFinding

describe('compareFired', () => {
  it('returns how much later a detector first fires', () => {
    expect(compareFired([fired('stall', 10), fired('stall', 40)], [fired('stall', 25)])).toMatchObject([{ kind: 'stall', later: 15 }])
  })

  it('includes detectors that fire in only one evaluation', () => {
    const differences = compareFired([fired('stall', 10)], [fired('spending', 5)])
    expect(differences.map(({ kind, before, after, later }) => [kind, !!before, !!after, later])).toEqual([['spending', false, true, null], ['stall', true, false, null]])
  })
})

describe('settings in the URL', () => {
  it('are read unchanged', () => {
    expect(readSettings(writeSettings({ 'loops.window': 20, 'health_check.error_rate': 0.25 }))).toEqual({ 'loops.window': 20, 'health_check.error_rate': 0.25 })
  })

  it('are skipped if they are not numbers', () => {
    expect(readSettings('a:x,b,:3,c:4')).toEqual({ c: 4 })
  })
})

describe('slider', () => {
  it('reaches both ends', () => {
    for (const [low, high] of [[1, 50], [10, 86_400], [0, 1]] as const) {
      expect(fromSlider(0, low, high, false)).toBe(low)
      expect(fromSlider(SLIDER, low, high, false)).toBe(high)
    }
  })

  it('has a range around the default, within the allowed range', () => {
    expect(sliderRange(300, 0, 31_536_000)).toEqual([15, 6000])
    expect(sliderRange(0.55, 0.5, 1)).toEqual([0.5, 1])
    expect(sliderRange(3, 1, null)).toEqual([1, 60])
  })

  it('is logarithmic over a wide range', () => {
    expect(toSlider(300, 10, 86_400)).toBeGreaterThan(300)
    expect(fromSlider(toSlider(300, 10, 86_400), 10, 86_400, true)).toBe(300)
  })
})

describe('findStepMoment', () => {
  const moments = [{ step_id: 'a', at: 1 }, { step_id: 'b', at: 5 }]

  it('returns the moment of the step, or the last moment before its time', () => {
    expect(findStepMoment(moments, 'b', undefined)).toBe(1)
    expect(findStepMoment(moments, 'x', 4)).toBe(0)
    expect(findStepMoment(moments, 'x', undefined)).toBe(-1)
  })
})

describe('address of a moment', () => {
  const moments = [{ step_id: 'a', at: 1 }, { step_id: 'b~1', at: 2.25 }, { step_id: 'a', at: 4 }, { step_id: 'b~1', at: 5 }]

  it('identifies each moment, even several of the same step', () => {
    for (const [index, moment] of moments.entries()) {
      const { step_id, at } = readAddress(momentAddress(moment))
      expect(findMoment(moments, { step_id: step_id!, at: at! })).toBe(index)
    }
  })

  it('has no time if it identifies a step', () => {
    expect(readAddress('a')).toEqual({ step_id: 'a', at: undefined })
    expect(readAddress(undefined).step_id).toBe('')
  })

  it('falls back to the time if a changed threshold removed the moment', () => {
    expect(findMoment(moments, { step_id: 'gone', at: 3 })).toBe(1)
  })
})

describe('typed threshold', () => {
  it('is refused with the reason and the allowed range', () => {
    expect(thresholdFault('5', 1, 100, true)).toBe('')
    expect(thresholdFault('0', 1, 100, true)).toBe('0 is not allowed; enter 1 to 100.')
    expect(thresholdFault('1e9', 1, 100, true)).toBe('1e9 is not allowed; enter 1 to 100.')
    expect(thresholdFault('-1', 0, null, false)).toBe('-1 is not allowed; enter at least 0.')
    expect(thresholdFault('', 1, 100, true)).toBe('a number is required, 1 to 100.')
    expect(thresholdFault('2.5', 1, 100, true)).toBe('it must be a whole number.')
  })
})
