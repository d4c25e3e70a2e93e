type_name = (SELECT names[/*n*/1] FROM claimable) AND payload_version = (:versions::integer[])[/*n*/1]
