-- Raise what is expected of a field where its text is not that.
CREATE OR REPLACE FUNCTION {schema}.check_text(field text, given text, most integer, never text, may_be_null boolean)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF (given IS NULL AND may_be_null) OR (length(given) BETWEEN 1 AND most AND btrim(given) <> '' AND given !~ never) THEN
        RETURN;
    END IF;
    RAISE '%: expected a text of 1 to % characters without %, got %', field, most, never, coalesce(quote_literal(left(given, 100)), 'NULL')
        USING ERRCODE = 'invalid_parameter_value';
END $$;
