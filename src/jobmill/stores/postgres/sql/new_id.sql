-- A fresh id: a uuid of version 7, which sorts by its time.
CREATE OR REPLACE FUNCTION {schema}.new_id() RETURNS text LANGUAGE sql VOLATILE
    RETURN encode(
        set_bit(
            set_bit(
                overlay(
                    uuid_send(gen_random_uuid()) PLACING substring(int8send({schema}.now_ms()) FROM 3) FROM 1 FOR 6
                ),
                52, 1
            ),
            53, 1
        ),
        'hex'
    )::uuid::text;
