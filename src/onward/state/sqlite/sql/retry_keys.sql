-- For chains that have ended, the live chains that have their deduplication keys.
SELECT ended.id, live.id
FROM json_each(:chain_ids) asked
  CROSS JOIN /*schema*/job ended ON ended.id = asked.value
  CROSS JOIN /*schema*/job live
    ON live.deduplication_key = ended.deduplication_key AND live.type_name = ended.type_name
WHERE live.deduplication_key IS NOT NULL AND live.chain_index = 0 AND live.id <> ended.id
  AND live.chain_ended_at IS NULL
