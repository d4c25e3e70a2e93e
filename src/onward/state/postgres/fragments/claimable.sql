claimable AS MATERIALIZED (
  SELECT array_agg(CASE WHEN paused.type_name IS NULL THEN asked.name END ORDER BY asked.position) AS names
  FROM unnest(:type_names::text[]) WITH ORDINALITY AS asked(name, position)
  LEFT JOIN /*schema*/paused_type paused ON paused.type_name = asked.name
)
