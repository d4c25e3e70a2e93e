SELECT id, rank, scheduled_at FROM /*schema*/job
WHERE type_name = (SELECT names[/*n*/1] FROM claimable) AND payload_version = (:versions::integer[])[/*n*/1]
  AND status = 'pending' AND NOT deferred AND (limit_key IS NULL OR admitted_after = attempt)
