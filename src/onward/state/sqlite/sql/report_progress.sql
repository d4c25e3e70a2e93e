-- How far running attempts have come.
WITH said AS MATERIALIZED (
  SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS attempt,
    json_extract(value, '$[2]') AS fraction, json_extract(value, '$[3]') AS note
  FROM json_each(:reports)
)
UPDATE /*schema*/job AS job SET progress = said.fraction, progress_note = said.note
FROM said
WHERE job.id = said.id AND job.attempt = said.attempt AND job.leased_by = :worker
