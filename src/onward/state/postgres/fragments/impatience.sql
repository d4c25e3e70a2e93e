set_config('lock_timeout', '100ms', true)
