-- Whether a payload is an object whose fields have the values of another object, both as JSON; false where it cannot be
-- read. jsonb has no \u0000, so another character stands for it in both.
CREATE OR REPLACE FUNCTION {schema}.payload_has(payload text, wanted text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE COST 900 AS $$
DECLARE
    given jsonb;
BEGIN
    BEGIN
        given := replace(payload, E'\\u0000', E'\\ufdd0')::jsonb;
    EXCEPTION WHEN OTHERS THEN
        RETURN false;
    END;
    RETURN jsonb_typeof(given) = 'object' AND NOT EXISTS (
        SELECT FROM jsonb_each(replace(wanted, E'\\u0000', E'\\ufdd0')::jsonb) AS field
        WHERE given -> field.key IS DISTINCT FROM field.value
    );
END $$;
