-- For every key asked about, the newest chain that counts as its duplicate, or NULL.
SELECT json_extract(asked.value, '$[0]'), (
    SELECT job.id FROM /*schema*/job job
    WHERE job.deduplication_key = json_extract(asked.value, '$[1]')
      AND job.type_name = json_extract(asked.value, '$[2]') AND job.chain_index = 0
      AND (json_extract(asked.value, '$[3]') = 'any' OR job.chain_ended_at IS NULL)
      AND (json_extract(asked.value, '$[4]') IS NULL OR job.created_at > json_extract(asked.value, '$[4]'))
      AND job.id NOT IN (SELECT excluded.value FROM json_each(asked.value, '$[5]') excluded)
    ORDER BY job.id DESC LIMIT 1
  )
FROM json_each(:keys) asked
