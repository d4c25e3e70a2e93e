-- First what the header knows, then the job the chain has come to.
header.id, header.type_name, /*schema*/readable(header.created_at), /*schema*/readable(header.chain_ended_at),
/*include fragments/history_job_columns*/
