import { expect, test } from 'vitest'
import { removeRepetitions } from './repetitions'

test('repeated sentences and empty texts are removed', () => {
  expect(
    removeRepetitions([
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
