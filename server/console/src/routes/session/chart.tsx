import 'uplot/dist/uPlot.min.css'
import { useEffect, useRef } from 'react'
import UPlot from 'uplot'
import type { Step } from '../../api/schema'
import { count, money, timeOfDay } from '../../format'
import { useTheme } from '../../shell/theme'

const HEIGHT = 132

/** Tokens of each turn as bars, and the cumulative cost (or tokens, without prices) as a line. */
export function Chart({ turns, onset }: { turns: readonly Step[]; onset: number | null }) {
  const box = useRef<HTMLDivElement>(null)
  const plot = useRef<UPlot | null>(null)
  const theme = useTheme()
  const isPriced = turns.some((turn) => turn.cost_usd !== null)
  const mark = useRef(onset)
  const total = turns.reduce((sum, turn) => sum + (isPriced ? (turn.cost_usd ?? 0) : turn.tokens_in + turn.tokens_out), 0)

  useEffect(() => {
    const element = box.current!
    const style = getComputedStyle(document.documentElement)
    const colour = (name: string): string => style.getPropertyValue(`--${name}`).trim()
    const axis = { stroke: colour('muted'), grid: { stroke: colour('line'), width: 1 }, ticks: { show: false }, font: `11px ${colour('font')}`, gap: 4 }
    const chart = new UPlot(
      {
        width: element.clientWidth,
        height: HEIGHT,
        padding: [8, 0, 0, 0],
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false }, points: { show: false } },
        scales: { x: { time: true }, tokens: { range: (_, __, most) => [0, most * 1.15] }, sum: { range: (_, __, most) => [0, most * 1.1 || 1] } },
        axes: [
          { ...axis, size: 22, space: 70, values: (_, times) => times.map((at) => timeOfDay(at)) },
          { ...axis, scale: 'tokens', size: 44, values: (_, ticks) => ticks.map((value) => count(value)) },
          { ...axis, scale: 'sum', side: 1, size: 52, grid: { show: false }, values: (_, ticks) => ticks.map((value) => (isPriced ? money(value) : count(value))) },
        ],
        series: [
          {},
          { scale: 'tokens', fill: colour('quiet'), width: 0, paths: UPlot.paths.bars!({ size: [0.7, 8], align: 1 }), points: { show: false } },
          { scale: 'sum', stroke: colour('accent'), width: 2, points: { show: false } },
        ],
        hooks: {
          drawClear: [
            (self) => {
              const at = mark.current
              if (at === null || self.scales.x!.max! < at) return
              const x = Math.max(self.bbox.left, self.valToPos(at, 'x', true))
              self.ctx.fillStyle = colour('failing-soft')
              self.ctx.fillRect(x, self.bbox.top, self.bbox.left + self.bbox.width - x, self.bbox.height)
            },
          ],
        },
      },
      [[], [], []],
      element,
    )
    plot.current = chart
    const resize = new ResizeObserver(() => chart.setSize({ width: element.clientWidth, height: HEIGHT }))
    resize.observe(element)
    return () => {
      resize.disconnect()
      chart.destroy()
      plot.current = null
    }
  }, [theme, isPriced])

  useEffect(() => {
    mark.current = onset
    let sum = 0
    const sums = turns.map((turn) => (sum += isPriced ? (turn.cost_usd ?? 0) : turn.tokens_in + turn.tokens_out))
    plot.current?.setData([turns.map((turn) => turn.ended_at ?? turn.at), turns.map((turn) => turn.tokens_in + turn.tokens_out), sums])
  }, [turns, isPriced, theme, onset])

  return (
    <figure className="chart-frame">
      <figcaption className="muted">
        <span className="chart-key tokens">Tokens of a turn</span>
        <span className="chart-key sum">{isPriced ? 'Cost so far' : 'Tokens so far'}</span>
      </figcaption>
      <div ref={box} className="chart" role="img" aria-label={`${turns.length} turns; ${isPriced ? `cost ${money(total)}` : `${count(total)} tokens`} in all`} />
    </figure>
  )
}
