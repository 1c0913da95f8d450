interface Named {
  agent_id: string
  ended: boolean
}

/** Sort sessions by how well their names match a text: prefix, substring, others. Ended sessions follow equal ones. */
export function rankSessions<Row extends Named>(rows: readonly Row[], text: string): Row[] {
  const lowerText = text.toLowerCase()
  const rank = ({ agent_id, ended }: Row): number => {
    const index = agent_id.toLowerCase().indexOf(lowerText)
    return (index === 0 ? 0 : index > 0 ? 2 : 4) + Number(ended)
  }
  return [...rows].sort((a, b) => rank(a) - rank(b))
}
