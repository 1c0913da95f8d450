interface Named {
  agent_id: string
  ended: boolean
}

/** Sessions that match a text: names that begin with it, names that have it, others; of equal ones, those that ended are last. */
export function rankSessions<Row extends Named>(rows: readonly Row[], text: string): Row[] {
  const wanted = text.toLowerCase()
  const rank = ({ agent_id, ended }: Row): number => {
    const place = agent_id.toLowerCase().indexOf(wanted)
    return (place === 0 ? 0 : place > 0 ? 2 : 4) + Number(ended)
  }
  return [...rows].sort((one, other) => rank(one) - rank(other))
}
