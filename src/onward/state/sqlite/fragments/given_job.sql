-- What every job that is given says; see values.new_row.
json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS chain_id, json_extract(value, '$[2]') AS chain_index,
json_extract(value, '$[3]') AS type_name, json_extract(value, '$[4]') AS payload_version,
json_extract(value, '$[5]') AS rank, json_extract(value, '$[6]') AS scheduled_at,
json_extract(value, '$[7]') AS limit_key, json_extract(value, '$[8]') AS input,
json_extract(value, '$[9]') AS origin_id, json_extract(value, '$[10]') AS root_id,
json_extract(value, '$[11]') AS meta
