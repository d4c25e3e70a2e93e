claim AS (
  SELECT asked.*
  FROM unnest(:type_names::text[], :versions::integer[], :from_ranks::integer[], :from_times::timestamptz[],
    :firsts::integer[]) AS asked(type_name, payload_version, from_rank, from_time, first)
  WHERE NOT EXISTS (SELECT FROM /*schema*/paused_type paused WHERE paused.type_name = asked.type_name)
)
