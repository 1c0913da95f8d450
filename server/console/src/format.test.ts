import { expect, test } from 'vitest'
import { ago, count, counted, duration, money, names, timeLeft, took } from './format'

/** Replace the spaces between numbers and units with no-break spaces. */
const unbroken = (text: string): string => text.replaceAll(/(\d) (?=[a-z])/g, '$1\u00a0')

test.each([
  [0, '0 s'],
  [59.9, '59 s'],
  [60, '1 min'],
  [192, '3 min 12 s'],
  [600, '10 min'],
  [3_600, '1 h'],
  [7_500, '2 h 5 min'],
  [86_400 + 4 * 3_600, '1 d 4 h'],
  [-5, '0 s'],
])('a duration of %d seconds is %s', (seconds, text) => {
  expect(duration(seconds)).toBe(unbroken(text))
})

test.each([
  [99.4, '0 s', '20 s'],
  [101.5, '1 s', '19 s'],
  [120.2, '19 s', '1 s'],
])('at %d, a call that began at 100.3 with a limit of 20 s has run for %s and has %s left', (now, passed, left) => {
  expect(duration(now - 100.3)).toBe(unbroken(passed))
  expect(timeLeft(120.3, now, 20)).toBe(unbroken(left))
})

test.each([
  [100, 104, 'now'],
  [100, 145, '45 s ago'],
  [0, 7_300, '2 h ago'],
  [100, 90, 'now'],
])('age of an event at %d, seen at %d, is %s', (at, now, text) => {
  expect(ago(at, now)).toBe(unbroken(text))
})

test.each([
  [null, '—'],
  [undefined, '—'],
  [0, '$0'],
  [0.0031, '$0.0031'],
  [1.239, '$1.24'],
  [1_240.4, '$1,240'],
])('amount %s is formatted as %s', (value, text) => {
  expect(money(value)).toBe(text)
})

test('large numbers are short, and a noun follows its number', () => {
  expect([count(9_999), count(12_400), count(3_100_000)]).toEqual(['9,999', '12.4K', '3.1M'])
  expect([counted(1, 'worker'), counted(3, 'worker')]).toEqual(['1 worker', '3 workers'])
  expect([took(0.34), took(3.21), took(65)]).toEqual(['340 ms', '3.2 s', '1 min 5 s'].map(unbroken))
})

test.each([
  [['a'], 0, 'a'],
  [['a', 'b'], 0, 'a and b'],
  [['a', 'b', 'c'], 7, 'a, b and 8 more'],
])('list %j with %d hidden names shows two names', (list, more, text) => {
  expect(names(list, more)).toBe(text)
})
