-- Each with the job it has come to, found in the part that the chain is in.
JOIN /*schema*/history job ON job.chain_id = header.id AND job.chain_ended_at = header.chain_ended_at
  AND job.chain_index = (
    SELECT max(latest.chain_index) FROM /*schema*/history latest
    WHERE latest.chain_id = header.id AND latest.chain_ended_at = header.chain_ended_at)
