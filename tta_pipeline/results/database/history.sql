-- The latest evaluation of each cell beside its earlier ones: the one definition of "slower" and "another error", for
-- the database and for the checks, which ask it of record files. Words with a dollar sign are limits of
-- `evaluation_record.py`, or the columns of a cell.

CREATE VIEW history_comparison AS
WITH compared AS (
    SELECT
        e.benchmark, e.shift_set, e.experiment, e.subset, e.seed, e.stream, e.position, e.corruption, e.severity, e.shift_position, e.run_id, e.conditions, e.device, e.batch_size,
        e.num_samples, e.images_per_s, e.error,
        count(h.sequence) AS num_earlier,
        count(*) FILTER (h.conditions = e.conditions) AS num_earlier_alike, -- NULL equals nothing
        CASE WHEN num_earlier_alike >= $min_earlier THEN median(h.images_per_s) FILTER (h.conditions = e.conditions) END AS usual_images_per_s,
        median(h.error) AS usual_error,
        list(h.error ORDER BY h.sequence DESC) FILTER (h.fingerprint = e.fingerprint AND h.error <> e.error) AS other_errors
    FROM evaluations AS e
    LEFT JOIN evaluations AS h ON $same_cell AND h.sequence < e.sequence
    WHERE e.is_latest
    GROUP BY ALL
)
SELECT
    *,
    images_per_s / usual_images_per_s AS speed_ratio,
    coalesce(speed_ratio < $min_speed_ratio, FALSE) AS is_slower,
    coalesce(abs(error - usual_error) > $max_error_drift, FALSE) AS has_drifted
FROM compared
ORDER BY benchmark, shift_set, experiment, subset, seed, stream, position, shift_position, severity;
COMMENT ON VIEW history_comparison IS 'Latest evaluations, each beside the earlier ones of its cell; the checks of evaluations ask it of the newest records';
COMMENT ON COLUMN history_comparison.num_earlier IS 'Number of earlier evaluations of the cell by this experiment';
COMMENT ON COLUMN history_comparison.num_earlier_alike IS 'Number of earlier evaluations with equal conditions, with which is_slower compares';
COMMENT ON COLUMN history_comparison.usual_images_per_s IS 'Median speed of earlier evaluations with equal conditions; NULL if there are fewer than $min_earlier';
COMMENT ON COLUMN history_comparison.usual_error IS 'Median error of the earlier evaluations; NULL if there are none';
COMMENT ON COLUMN history_comparison.other_errors IS 'Errors of the earlier evaluations with the same fingerprint and another error, the newest first; NULL if there are none';
COMMENT ON COLUMN history_comparison.speed_ratio IS 'images_per_s / usual_images_per_s';
COMMENT ON COLUMN history_comparison.is_slower IS 'Whether speed_ratio is below $min_speed_ratio';
COMMENT ON COLUMN history_comparison.has_drifted IS 'Whether error differs from usual_error by more than $max_error_drift; with other settings, it may';

CREATE VIEW regressions AS
SELECT
    * EXCLUDE (num_samples, usual_error, other_errors, has_drifted),
    other_errors[1] AS other_error,
    other_errors IS NOT NULL AS has_other_error
FROM history_comparison
WHERE is_slower OR has_other_error;
COMMENT ON VIEW regressions IS 'The rows of history_comparison that are slower than earlier ones, or whose error changed although the fingerprint did not';
COMMENT ON COLUMN regressions.num_earlier IS 'As in history_comparison';
COMMENT ON COLUMN regressions.num_earlier_alike IS 'As in history_comparison';
COMMENT ON COLUMN regressions.usual_images_per_s IS 'As in history_comparison';
COMMENT ON COLUMN regressions.speed_ratio IS 'As in history_comparison';
COMMENT ON COLUMN regressions.is_slower IS 'As in history_comparison';
COMMENT ON COLUMN regressions.other_error IS 'Error of the newest earlier evaluation with the same fingerprint and another error';
COMMENT ON COLUMN regressions.has_other_error IS 'Whether the error differs although the fingerprint is equal';
