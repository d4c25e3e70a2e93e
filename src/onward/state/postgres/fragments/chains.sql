-- Headers, each with the job its chain has come to: two index look-ups instead of an OR.
/*schema*/job header
JOIN /*schema*/job job ON job.id = coalesce(
  (SELECT latest.id FROM /*schema*/job latest
   WHERE latest.chain_id = header.id AND latest.chain_index > 0
   ORDER BY latest.chain_index DESC LIMIT 1),
  header.id)
