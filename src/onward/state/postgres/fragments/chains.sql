-- Headers, each with the job its chain has come to.
/*schema*/job header,
LATERAL (
  SELECT latest.id FROM /*schema*/job latest
  WHERE latest.id = header.id OR (latest.chain_id = header.id AND latest.chain_index > 0)
  ORDER BY latest.chain_index DESC LIMIT 1
) current
JOIN /*schema*/job job ON job.id = current.id
