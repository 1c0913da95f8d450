import { expect, test } from 'vitest'
import { distinct } from './sentences'

test('no sentence is said twice, and what is left empty is left out', () => {
  expect(
    distinct([
      ['', 'It loops. Search was called 5 times.'],
      ['Cause', 'Search was called 5 times.'],
      ['Reason', 'It loops! Stop it.'],
      ['Evidence', 'line 1\n  line 2'],
      ['Suggested', null],
    ]),
  ).toEqual([
    ['', 'It loops. Search was called 5 times.'],
    ['Reason', 'Stop it.'],
    ['Evidence', 'line 1\n  line 2'],
  ])
})
