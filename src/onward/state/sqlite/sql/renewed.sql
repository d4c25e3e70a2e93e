-- What has become of every attempt whose lease was to be renewed, in the order given.
SELECT json_extract(held.value, '$[0]'), json_extract(held.value, '$[1]'),
  CASE
    WHEN job.id IS NULL THEN 'not_found'
    WHEN job.attempt = json_extract(held.value, '$[1]') AND job.leased_by = :worker
      THEN CASE WHEN job.cancel_requested_at IS NOT NULL THEN 'cancelled' END
    WHEN job.status IN ('completed', 'failed') THEN 'already_completed'
    ELSE 'taken_by_another_worker' END
FROM json_each(:held) held LEFT JOIN /*schema*/job job ON job.id = json_extract(held.value, '$[0]')
ORDER BY held.key
