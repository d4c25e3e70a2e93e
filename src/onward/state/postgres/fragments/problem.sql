SELECT CASE WHEN /*schema*/readable(job.created_at) <> job.created_at
    OR /*schema*/readable(job.scheduled_at) <> job.scheduled_at
    OR /*schema*/readable(job.leased_until) <> job.leased_until
    OR /*schema*/readable(job.ended_at) <> job.ended_at
  THEN concat_ws('; ',
    'created_at holds ' || nullif(job.created_at, /*schema*/readable(job.created_at)),
    'scheduled_at holds ' || nullif(job.scheduled_at, /*schema*/readable(job.scheduled_at)),
    'leased_until holds ' || nullif(job.leased_until, /*schema*/readable(job.leased_until)),
    'ended_at holds ' || nullif(job.ended_at, /*schema*/readable(job.ended_at))) END
