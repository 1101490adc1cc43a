-- Raise an error unless the text of a field is within its limits, with the limits and messages of core/limits.py.
-- Characters are listed, because classes such as [:space:] differ by locale; in E'', because
-- standard_conforming_strings may be off. A character beyond the basic plane counts as two, as in UTF-16.
CREATE OR REPLACE FUNCTION {schema}.check_text(
    field text, given text, most integer, may_have_blanks boolean, may_be_null boolean
) RETURNS void LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    text_ text COLLATE "C" := given;
    blanks CONSTANT text := E'\\u0020\\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000';
    controls CONSTANT text := E'\\u0001-\\u001f\\u007f-\\u009f';
BEGIN
    IF given IS NULL AND may_be_null THEN
        RETURN;
    END IF;
    IF text_ ~ ('[^' || blanks || ']')
        AND text_ !~ ('[' || controls || CASE WHEN may_have_blanks THEN '' ELSE blanks || E'\\ufeff' END || ']')
        AND (
            octet_length(text_) <= most
            OR length(regexp_replace(text_, E'[\\U00010000-\\U0010ffff]', 'xx', 'g')) <= most
        )
    THEN
        IF field = 'queue' AND strpos(text_, ':') > 0 THEN
            RAISE 'queue: expected a name without ":", got %', quote_literal(given)
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        RETURN;
    END IF;
    RAISE '%: expected a text of 1 to % characters without % characters, got %',
        field, most, CASE WHEN may_have_blanks THEN 'control' ELSE 'white space or control' END,
        coalesce(quote_literal(left(given, 100)), 'NULL')
        USING ERRCODE = 'invalid_parameter_value';
END $$;

-- The same for a payload, with the limit of core/payload.py.
CREATE OR REPLACE FUNCTION {schema}.check_payload(payload text) RETURNS void LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF payload IS NULL THEN
        RAISE 'payload: expected JSON, got NULL' USING
            ERRCODE = 'invalid_parameter_value',
            HINT = 'for a handler without parameters leave it out, or give {}';
    END IF;
    IF octet_length(payload) > {max_payload_bytes} THEN
        RAISE 'payload: expected at most {max_payload_bytes} bytes of JSON, got %', octet_length(payload) USING
            ERRCODE = 'invalid_parameter_value', HINT = 'store the data elsewhere and pass a reference to it';
    END IF;
    PERFORM payload::json;
END $$;
