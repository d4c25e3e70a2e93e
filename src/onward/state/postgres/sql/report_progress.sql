-- How far running attempts have come. SKIP LOCKED: an attempt that is being completed has nothing more to say.
WITH said AS (
  SELECT * FROM unnest(:ids::uuid[], :attempts::integer[], :fractions::double precision[], :notes::text[])
    AS s(id, attempt, fraction, note)
), running AS (
  SELECT job.id, said.fraction, said.note
  FROM /*schema*/job job JOIN said ON job.id = said.id AND job.attempt = said.attempt
  WHERE job.leased_by = :worker::text
  ORDER BY job.id
  FOR NO KEY UPDATE OF job SKIP LOCKED
)
UPDATE /*schema*/job job SET progress = running.fraction, progress_note = running.note
FROM running WHERE job.id = running.id
