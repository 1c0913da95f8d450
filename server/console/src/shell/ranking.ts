interface Named {
  agent_id: string
  ended: boolean
}

/** Sort sessions by how well their names match a text: prefix, substring, others. Ended sessions follow equal ones. */
export function rankSessions<Row extends Named>(rows: readonly Row[], text: string): Row[] {
  const wanted = text.toLowerCase()
  const rank = ({ agent_id, ended }: Row): number => {
    const place = agent_id.toLowerCase().indexOf(wanted)
    return (place === 0 ? 0 : place > 0 ? 2 : 4) + Number(ended)
  }
  return [...rows].sort((one, other) => rank(one) - rank(other))
}
