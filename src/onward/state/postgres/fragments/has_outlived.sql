j.chain_index = 0 AND j.chain_ended_at <= at - make_interval(
  secs => (CASE WHEN j.chain_failed THEN keep_failed ELSE keep_completed END)[array_position(type_names, j.type_name)])
