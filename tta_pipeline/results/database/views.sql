-- Common queries. Rows of different subsets are never combined; several seeds are runs of one experiment. A column
-- without a comment here gets the comment of the table's column with the same name.

CREATE VIEW cell_errors AS
WITH seeds AS (
    SELECT
        benchmark, dataset, experiment, subset, corruption, severity, seed,
        min(shift_position) AS shift_position,
        avg(error) AS error, avg(ece) AS ece, sum(num_samples) AS num_samples, sum(wall_s) AS wall_s,
        bool_or(generated) AS generated
    FROM evaluations
    WHERE counts
    GROUP BY ALL
)
SELECT
    benchmark, dataset, experiment, subset, corruption, severity,
    min(shift_position) AS shift_position,
    count(*) AS num_runs,
    avg(error) AS error,
    stddev_samp(error) AS sd_error,
    avg(ece) AS ece,
    sum(num_samples) / sum(wall_s) AS images_per_s,
    bool_or(generated) AS generated
FROM seeds
GROUP BY ALL;
COMMENT ON VIEW cell_errors IS 'Mean over seeds of each cell of each experiment, including clean images';
COMMENT ON COLUMN cell_errors.num_runs IS 'Number of seeds';
COMMENT ON COLUMN cell_errors.error IS 'Mean over seeds of the top-1 error in [0, 1]';
COMMENT ON COLUMN cell_errors.sd_error IS 'Standard deviation over seeds; NULL for a single seed';
COMMENT ON COLUMN cell_errors.ece IS 'Mean over seeds of the expected calibration error';
COMMENT ON COLUMN cell_errors.images_per_s IS 'Samples / seconds, over all seeds';

CREATE VIEW corruption_errors AS
WITH seeds AS (
    SELECT
        benchmark, dataset, experiment, subset, protocol, corruption, seed,
        min(shift_position) AS shift_position,
        count(*) AS num_cells,
        avg(error) AS error,
        avg(error) FILTER (severity = 5) AS error_at_5,
        avg(top5_error) AS top5_error,
        avg(ece) AS ece,
        bool_or(generated) AS generated,
        bool_or(weights = 'untrained') AS untrained
    FROM evaluations
    WHERE counts AND corruption <> 'clean'
    GROUP BY ALL
),
whole_seeds AS (
    FROM seeds
    QUALIFY num_cells = max(num_cells) OVER (PARTITION BY benchmark, dataset, experiment, subset, protocol, corruption)
),
by_severity AS (
    SELECT benchmark, dataset, experiment, subset, corruption, list(error ORDER BY severity) AS errors_by_severity
    FROM cell_errors
    WHERE corruption <> 'clean'
    GROUP BY ALL
)
SELECT
    benchmark, dataset, experiment, subset, protocol, corruption,
    min(shift_position) AS shift_position,
    any_value(num_cells) AS num_cells,
    count(*) AS num_runs,
    avg(error) AS mean_error,
    stddev_samp(error) AS sd_error,
    avg(error_at_5) AS error_at_5,
    avg(top5_error) AS mean_top5_error,
    avg(ece) AS mean_ece,
    any_value(errors_by_severity) AS errors_by_severity,
    bool_or(generated) AS generated,
    bool_or(untrained) AS untrained
FROM whole_seeds JOIN by_severity USING (benchmark, dataset, experiment, subset, corruption)
GROUP BY benchmark, dataset, experiment, subset, protocol, corruption;
COMMENT ON VIEW corruption_errors IS 'Mean error of each experiment under each corruption, over the severities evaluated; compare only rows of equal benchmark, dataset, subset, protocol and num_cells';
COMMENT ON COLUMN corruption_errors.num_cells IS 'Number of severities evaluated';
COMMENT ON COLUMN corruption_errors.num_runs IS 'Number of seeds that have all these severities';
COMMENT ON COLUMN corruption_errors.mean_error IS 'Mean over seeds of the mean over severities of the top-1 error';
COMMENT ON COLUMN corruption_errors.sd_error IS 'Standard deviation over seeds of the mean over severities; NULL for a single seed';
COMMENT ON COLUMN corruption_errors.error_at_5 IS 'Mean over seeds of the top-1 error at severity 5';
COMMENT ON COLUMN corruption_errors.mean_top5_error IS 'Mean over seeds and severities of the top-5 error';
COMMENT ON COLUMN corruption_errors.mean_ece IS 'Mean over seeds and severities of the expected calibration error';
COMMENT ON COLUMN corruption_errors.untrained IS 'As in leaderboard';
COMMENT ON COLUMN corruption_errors.errors_by_severity IS 'Top-1 errors in ascending order of severity, each a mean over seeds';

-- Macros have no WITH: DuckDB 1.4.0 and 1.4.1 would not find its names.
CREATE MACRO mce_against(name) AS TABLE
SELECT
    benchmark, dataset, experiment, subset,
    name AS normaliser,
    count(mce) AS num_runs,
    avg(mce) AS mce,
    stddev_samp(mce) AS sd_mce,
    avg(relative_mce) AS relative_mce,
    bool_or(generated) AS generated
FROM ( -- a row for each seed
    SELECT
        benchmark, dataset, experiment, subset, seed,
        bool_or(generated) AS generated,
        CASE WHEN count(ratio) = any_value(num_in_mean) THEN 100 * avg(ratio) END AS mce,
        CASE WHEN count(relative_ratio) = any_value(num_in_mean) THEN 100 * avg(relative_ratio) END AS relative_mce
    FROM (
        SELECT
            *,
            CASE WHEN counts_in_mean AND is_whole THEN errors / nullif(normaliser_errors, 0) END AS ratio,
            CASE WHEN counts_in_mean AND is_whole THEN
                (errors - 5 * clean_error) / nullif(normaliser_errors - 5 * clean_normaliser_error, 0)
            END AS relative_ratio
        FROM (
            SELECT
                *,
                any_value(errors / nullif(num_cells, 0)) FILTER (corruption = 'clean') OVER seed_ AS clean_error,
                any_value(normaliser_errors / nullif(num_cells, 0)) FILTER (corruption = 'clean') OVER seed_ AS clean_normaliser_error
            FROM ( -- a row for each shift
                SELECT
                    e.benchmark, e.dataset, e.experiment, e.subset, e.seed, e.corruption,
                    count(n.error) AS num_cells,
                    count(n.error) = 5 AND bit_or(1 << n.severity) = 62 AS is_whole, -- severities 1 to 5, each once
                    sum(e.error) AS errors,
                    sum(n.error) AS normaliser_errors,
                    bool_and(e.counts_in_mean) AS counts_in_mean,
                    bool_or(e.generated) AS generated
                FROM evaluations AS e
                LEFT JOIN (
                    SELECT NULL AS benchmark, 'imagenet_c' AS dataset, NULL AS subset, corruption, severity, error
                    FROM mce_baselines WHERE baseline = name
                    UNION ALL
                    SELECT benchmark, dataset, subset, corruption, severity, error
                    FROM cell_errors WHERE experiment = name
                ) AS n ON
                    n.dataset = e.dataset AND n.corruption = e.corruption AND n.severity = e.severity
                    AND coalesce(n.benchmark, e.benchmark) = e.benchmark AND coalesce(n.subset, e.subset) = e.subset
                WHERE e.counts
                GROUP BY ALL
            )
            WINDOW seed_ AS (PARTITION BY benchmark, dataset, experiment, subset, seed)
        )
    ) AS ratios
    LEFT JOIN (SELECT benchmark, dataset, max(num_in_mean) AS num_in_mean FROM plans GROUP BY ALL) AS sizes
        USING (benchmark, dataset)
    GROUP BY ALL
)
GROUP BY benchmark, dataset, experiment, subset;
COMMENT ON MACRO TABLE mce_against IS 'Mean corruption error of each experiment, normalised by an experiment of its benchmark and subset, alexnet-full or alexnet-5k; NULL unless every shift of the set''s mean is evaluated at severities 1 to 5';

CREATE VIEW mce AS
FROM mce_against('alexnet-full') UNION ALL FROM mce_against('alexnet-5k');
COMMENT ON VIEW mce IS 'Mean corruption error normalised by AlexNet (Hendrycks & Dietterich 2019, section 4.1); defined on ImageNet-C, so NULL for any other dataset';
COMMENT ON COLUMN mce.normaliser IS 'alexnet-full for all 50,000 images of a cell, alexnet-5k for RobustBench''s list of 5,000';
COMMENT ON COLUMN mce.num_runs IS 'Number of seeds that have all 75 cells';
COMMENT ON COLUMN mce.mce IS 'In percent: 100 x mean over the 15 corruptions of sum of errors / sum of the normaliser''s errors; NULL unless all 75 cells are evaluated';
COMMENT ON COLUMN mce.sd_mce IS 'Standard deviation over seeds; NULL for a single seed';
COMMENT ON COLUMN mce.relative_mce IS 'As mce, with the clean error subtracted from each error first; NULL without clean images';

CREATE VIEW leaderboard AS
WITH cells AS (
    -- Evaluations without a benchmark file have no counts_in_mean.
    SELECT *, corruption <> 'clean' AND counts_in_mean IS DISTINCT FROM FALSE AS is_averaged FROM evaluations WHERE counts
),
seeds AS ( -- a row for each seed: means over cells of shifts that count in the set's mean, sums over all cells
    SELECT
        benchmark, dataset, experiment, subset, model, method, protocol, seed,
        count(*) FILTER (is_averaged) AS num_cells,
        avg(error) FILTER (is_averaged) AS mean_error,
        avg(error) FILTER (is_averaged AND severity = 5) AS mean_error_at_5,
        avg(error) FILTER (corruption = 'clean') AS clean_error,
        avg(top5_error) FILTER (is_averaged) AS mean_top5_error,
        avg(nll) FILTER (is_averaged) AS mean_nll,
        avg(brier) FILTER (is_averaged) AS mean_brier,
        avg(ece) FILTER (is_averaged) AS mean_ece,
        sum(num_samples) AS num_samples,
        sum(median_wall_s) AS wall_s,
        sum(data_wait_s) / sum(wall_s) AS data_wait_share,
        sum(num_forwards) AS num_forwards,
        sum(num_backwards) AS num_backwards,
        bool_and(under_load) AS under_load,
        max(devices_differ_by) AS devices_differ_by,
        max(peak_cuda_gib) AS peak_cuda_gib,
        count(*) FILTER (diverged) AS num_diverged,
        -- The experiment gets the least trustworthy origin of its cells.
        CASE
            WHEN bool_or(hyperparameters_origin = 'set by hand') THEN 'set by hand'
            WHEN bool_or(hyperparameters_origin = 'own') THEN 'own'
            WHEN bool_or(hyperparameters_origin = 'preset') THEN 'preset'
            ELSE max(hyperparameters_origin)
        END AS hyperparameters,
        bool_or(protocol = 'own') AS without_file,
        bool_or(generated) AS generated,
        bool_or(weights = 'untrained') AS untrained
    FROM cells
    GROUP BY ALL
),
whole_seeds AS (
    FROM seeds
    QUALIFY num_cells = max(num_cells) OVER (PARTITION BY benchmark, dataset, experiment, subset, model, method, protocol)
)
SELECT
    benchmark, dataset, experiment, subset, model, method, protocol,
    any_value(num_cells) AS num_cells,
    coalesce(max(num_cells_asked), any_value(num_cells)) AS num_cells_asked,
    count(*) AS num_runs,
    avg(mean_error) AS mean_error,
    stddev_samp(mean_error) AS sd_error,
    CASE WHEN count(*) >= 10 THEN
        list_avg(list_slice(list_reverse_sort(list(mean_error)), 1, CAST(ceil(count(*) / 10) AS BIGINT)))
    END AS error_worst_10pct_seeds,
    avg(mean_error_at_5) AS mean_error_at_5,
    avg(clean_error) AS clean_error,
    any_value(mce.mce) FILTER (NOT whole_seeds.generated) AS mce,
    any_value(mce.relative_mce) FILTER (NOT whole_seeds.generated) AS relative_mce,
    avg(mean_top5_error) AS mean_top5_error,
    avg(mean_nll) AS mean_nll,
    avg(mean_brier) AS mean_brier,
    avg(mean_ece) AS mean_ece,
    sum(num_samples) / sum(wall_s) AS images_per_s,
    avg(data_wait_share) AS data_wait_share,
    bool_and(under_load) AS under_load,
    max(devices_differ_by) AS devices_differ_by,
    sum(num_forwards) / sum(num_samples) AS forwards_per_sample,
    sum(num_backwards) / sum(num_samples) AS backwards_per_sample,
    max(peak_cuda_gib) AS peak_cuda_gib,
    sum(num_diverged) AS num_diverged,
    CASE
        WHEN bool_or(hyperparameters = 'set by hand') THEN 'set by hand'
        WHEN bool_or(hyperparameters IS NULL) THEN NULL
        WHEN bool_or(hyperparameters = 'own') THEN 'own'
        WHEN bool_or(hyperparameters = 'preset') THEN 'preset'
        ELSE max(hyperparameters)
    END AS hyperparameters,
    bool_or(without_file) AS without_file,
    bool_or(whole_seeds.generated) AS generated,
    bool_or(untrained) AS untrained
FROM whole_seeds
LEFT JOIN (
    FROM mce WHERE normaliser = CASE WHEN regexp_matches(subset, 'robustbench|imagenet_test_image_ids', 'i') THEN 'alexnet-5k' ELSE 'alexnet-full' END
) AS mce USING (benchmark, dataset, experiment, subset)
LEFT JOIN (SELECT benchmark, dataset, experiment, num_cells_asked FROM plans) USING (benchmark, dataset, experiment)
GROUP BY benchmark, dataset, experiment, subset, model, method, protocol
ORDER BY benchmark, dataset, subset, any_value(num_cells) < max(num_cells_asked), mean_error;
COMMENT ON VIEW leaderboard IS 'One row for each experiment on each subset, best mean error first; means are over the shifts that count in the set''s mean, without shifts held out for tuning; compare only rows of equal benchmark, dataset, subset, protocol and num_cells';
COMMENT ON COLUMN leaderboard.num_cells IS 'Number of stream segments of the shifts that count in the set''s mean; a gradual stream visits most cells twice';
COMMENT ON COLUMN leaderboard.num_cells_asked IS 'Number of these segments in the experiment; while some have no results, means cover the others and enter no mean over sets';
COMMENT ON COLUMN leaderboard.under_load IS 'Whether other processes kept a fifth of the cores busy during all timings of each cell';
COMMENT ON COLUMN leaderboard.devices_differ_by IS 'Largest difference of the errors of a cell between devices that computed other predictions of the same fingerprint, in [0, 1]; the first result counts; NULL if there are none';
COMMENT ON COLUMN leaderboard.num_runs IS 'Number of seeds that have all these cells; other seeds are left out';
COMMENT ON COLUMN leaderboard.mean_error IS 'Mean over seeds of the mean over these cells of the top-1 error in [0, 1]; NULL if all are held out';
COMMENT ON COLUMN leaderboard.sd_error IS 'Standard deviation over seeds of the mean over cells; NULL for a single seed';
COMMENT ON COLUMN leaderboard.error_worst_10pct_seeds IS 'Mean over the worst 10 % of the seeds, rounded up, of the mean over cells: 1 - error_worst_10pct_seeds is the expected tail accuracy of Fuchs et al. 2025 (OGA); NULL with fewer than 10 seeds';
COMMENT ON COLUMN leaderboard.mean_error_at_5 IS 'Mean over seeds of the mean over cells of severity 5 of the top-1 error';
COMMENT ON COLUMN leaderboard.clean_error IS 'Mean over seeds and segments of the top-1 error on clean images';
COMMENT ON COLUMN leaderboard.mce IS 'As in the view mce: by alexnet-5k for RobustBench''s list (its name contains robustbench or imagenet_test_image_ids), otherwise by alexnet-full; NULL for images generated by this project, and unless all 75 cells are evaluated';
COMMENT ON COLUMN leaderboard.relative_mce IS 'As mce, with the clean error subtracted from each error first; also NULL without clean images';
COMMENT ON COLUMN leaderboard.mean_top5_error IS 'Mean over seeds and cells of the top-5 error';
COMMENT ON COLUMN leaderboard.mean_nll IS 'Mean over seeds and cells of the negative log-likelihood, in nats';
COMMENT ON COLUMN leaderboard.mean_brier IS 'Mean over seeds and cells of the Brier score';
COMMENT ON COLUMN leaderboard.mean_ece IS 'Mean over seeds and cells of the expected calibration error';
COMMENT ON COLUMN leaderboard.images_per_s IS 'Samples / seconds, over all seeds and cells, including clean images; the time of a cell is the median of its timings under equal conditions, without other load if there are such';
COMMENT ON COLUMN leaderboard.data_wait_share IS
    'Mean over seeds of data_wait_s / wall_s; a GPU may compute meanwhile: device_idle_s of the evaluations is its idle time';
COMMENT ON COLUMN leaderboard.forwards_per_sample IS 'num_forwards / num_samples';
COMMENT ON COLUMN leaderboard.backwards_per_sample IS 'num_backwards / num_samples';
COMMENT ON COLUMN leaderboard.hyperparameters IS 'published: exactly the values that were published for this method, kind of network and dataset; tuned (held-out): a preset with some values chosen by tuning on shifts that are not reported; preset: values published for another kind of network or dataset; own: your own method; set by hand: anything else, in any cell; NULL if an evaluation has no record of it';
COMMENT ON COLUMN leaderboard.without_file IS 'Whether the benchmark file is missing or cannot be read, or never existed; the results count as they were evaluated';
COMMENT ON COLUMN leaderboard.untrained IS 'Whether the model has random weights; if so, its errors are not comparable';
COMMENT ON COLUMN leaderboard.num_diverged IS 'Number of evaluations with a broken model, as defined by diverged';

CREATE VIEW group_means AS
WITH seeds AS (
    SELECT
        benchmark, shift_group, dataset, experiment, subset, model, method, weights, protocol, corruption, severity, seed,
        avg(error) AS error,
        max(num_samples) AS num_images,
        sum(num_samples) AS num_samples,
        sum(wall_s) AS wall_s,
        sum(num_forwards) AS num_forwards,
        sum(num_backwards) AS num_backwards,
        bool_or(generated) AS generated
    FROM evaluations
    WHERE counts AND counts_in_mean AND shift_group IS NOT NULL
    GROUP BY ALL
),
whole AS ( -- a set of which cells are missing enters no mean
    SELECT benchmark, dataset, experiment, subset, protocol FROM leaderboard WHERE num_cells = num_cells_asked
),
cells AS (
    SELECT
        benchmark, shift_group, dataset, experiment, subset, model, method, weights, protocol, corruption, severity,
        avg(error) AS error,
        max(num_images) AS num_images,
        count(*) AS num_runs,
        sum(num_samples) AS num_samples,
        sum(wall_s) AS wall_s,
        sum(num_forwards) AS num_forwards,
        sum(num_backwards) AS num_backwards,
        bool_or(generated) AS generated
    FROM seeds SEMI JOIN whole USING (benchmark, dataset, experiment, subset, protocol)
    GROUP BY ALL
),
sets AS (
    SELECT
        benchmark, shift_group, dataset, experiment, subset, model, method, weights, protocol,
        count(*) AS num_cells,
        min(severity) AS least_severity,
        max(severity) AS most_severity,
        min(num_runs) AS num_runs,
        avg(error) AS error,
        -- As if all cells of a set had the same images: no smaller than the truth.
        avg(sqrt(error * (1 - error) / num_images)) AS chance_error,
        sum(num_samples) AS num_samples,
        sum(wall_s) AS wall_s,
        sum(num_forwards) AS num_forwards,
        sum(num_backwards) AS num_backwards,
        bool_or(generated) AS generated
    FROM cells
    GROUP BY ALL
),
groups AS (
    SELECT
        benchmark, shift_group, experiment, subset, model, method, weights, protocol,
        string_agg(dataset, ', ' ORDER BY dataset) AS datasets,
        count(*) AS num_sets,
        sum(num_cells) AS num_cells,
        min(least_severity) AS least_severity,
        max(most_severity) AS most_severity,
        min(num_runs) AS num_runs,
        avg(error) AS mean_error,
        1.96 * sqrt(sum(chance_error ** 2)) / count(*) AS half_width,
        sum(num_samples) / sum(wall_s) AS images_per_s,
        sum(num_forwards) / sum(num_samples) AS forwards_per_sample,
        sum(num_backwards) / sum(num_samples) AS backwards_per_sample,
        bool_or(generated) AS generated
    FROM sets
    GROUP BY ALL
)
SELECT
    benchmark, g.shift_group, experiment, subset, model, g.method, protocol, g.datasets, num_sets, g.num_cells,
    num_runs, mean_error,
    greatest(0, mean_error - half_width) AS error_low,
    least(1, mean_error + half_width) AS error_high,
    images_per_s, forwards_per_sample, backwards_per_sample,
    p.error AS published_error,
    p.source AS published_in,
    g.generated
FROM groups AS g
LEFT JOIN published_means AS p ON
    p.shift_group = g.shift_group AND p.datasets = g.datasets AND p.num_cells = g.num_cells
    AND p.weights = g.weights AND p.method = g.method AND p.severity = least_severity AND p.severity = most_severity
    AND subset = 'all' AND protocol = 'reset_each_shift' AND NOT g.generated;
COMMENT ON VIEW group_means IS 'Mean error of each experiment over the datasets of a group, each set weighing the same, with the published mean of the same sets, weights and method; compare only rows of equal subset, protocol, datasets and num_cells';
COMMENT ON COLUMN group_means.datasets IS 'Names of the sets in alphabetical order, with commas between them';
COMMENT ON COLUMN group_means.num_sets IS 'Number of sets of the group that are evaluated';
COMMENT ON COLUMN group_means.num_cells IS 'Number of cells of these sets that count in the mean of their set';
COMMENT ON COLUMN group_means.num_runs IS 'Smallest number of seeds of a cell';
COMMENT ON COLUMN group_means.mean_error IS 'Mean over the sets of the mean over their cells of the mean over seeds of the top-1 error in [0, 1]';
COMMENT ON COLUMN group_means.error_low IS 'Lower end of the 95 % interval of mean_error for other images of the same sets (normal approximation; the cells of a set count as if they had the same images)';
COMMENT ON COLUMN group_means.error_high IS 'Upper end of this interval';
COMMENT ON COLUMN group_means.images_per_s IS 'Samples / seconds, over all sets and seeds';
COMMENT ON COLUMN group_means.forwards_per_sample IS 'num_forwards / num_samples';
COMMENT ON COLUMN group_means.backwards_per_sample IS 'num_backwards / num_samples';
COMMENT ON COLUMN group_means.published_error IS 'Published mean error of the method over exactly these sets and cells with these weights; NULL if none is known, and for a subset, another protocol or generated images';
COMMENT ON COLUMN group_means.published_in IS 'Publication of published_error';

CREATE VIEW forgetting AS
WITH unadapted AS (
    SELECT benchmark, dataset, subset, weights_sha256, avg(error) AS unadapted_error
    FROM evaluations
    WHERE counts AND method = 'source' AND corruption = 'clean'
    GROUP BY ALL
),
segments AS (
    SELECT benchmark, dataset, experiment, subset, method, stream, position, weights_sha256, error, generated
    FROM evaluations
    WHERE counts AND corruption = 'clean' AND position > 0 -- a stream that returned to clean images
)
SELECT
    benchmark, dataset, experiment, subset, method, stream, position,
    count(*) AS num_runs,
    avg(error) AS clean_error,
    stddev_samp(error) AS sd_clean_error,
    any_value(unadapted_error) AS unadapted_error,
    avg(error) - any_value(unadapted_error) AS forgetting,
    bool_or(generated) AS generated
FROM segments
LEFT JOIN unadapted USING (benchmark, dataset, subset, weights_sha256)
GROUP BY benchmark, dataset, experiment, subset, method, stream, position
ORDER BY benchmark, dataset, subset, experiment, stream, position;
COMMENT ON VIEW forgetting IS 'Error on clean images when a continual stream returns to them (clean: at_end or after_each), compared with the same weights unadapted';
COMMENT ON COLUMN forgetting.num_runs IS 'Number of seeds';
COMMENT ON COLUMN forgetting.clean_error IS 'Mean over seeds of the top-1 error on clean images at this position of the stream';
COMMENT ON COLUMN forgetting.sd_clean_error IS 'Standard deviation over seeds; NULL for a single seed';
COMMENT ON COLUMN forgetting.unadapted_error IS 'Error of method source with the same weights and subset; NULL if it was not evaluated on clean images';
COMMENT ON COLUMN forgetting.forgetting IS 'clean_error - unadapted_error; above 0, adaptation reduced accuracy on clean images (Niu et al. 2022, section 4)';

CREATE VIEW calibration_bins AS
SELECT
    benchmark, dataset, experiment, subset, seed, stream, position, corruption, severity, generated,
    unnest(range(1, len(bin_counts) + 1)) AS bin,
    unnest(bin_counts) AS num_samples,
    unnest(bin_confidence_sums) AS confidence_sum,
    unnest(bin_correct_counts) AS num_correct
FROM evaluations
WHERE counts;
COMMENT ON VIEW calibration_bins IS 'One row for each confidence bin of each evaluation that counts; sums over any cells give the exact calibration of their union';
COMMENT ON COLUMN calibration_bins.bin IS 'From 1, lowest confidence, to 15; bin b contains confidences in ((b - 1) / 15, b / 15]';
COMMENT ON COLUMN calibration_bins.num_samples IS 'Samples in the bin';
COMMENT ON COLUMN calibration_bins.confidence_sum IS 'Sum of their confidences';
COMMENT ON COLUMN calibration_bins.num_correct IS 'Correct predictions in the bin';

CREATE VIEW class_errors AS
SELECT
    e.benchmark, e.dataset, e.experiment, e.subset, e.seed, e.stream, e.position, e.corruption, e.severity,
    unnest(range(len(c.num_samples))) AS label,
    unnest(c.num_samples) AS num_samples,
    unnest(c.num_correct) AS num_correct
FROM class_results AS c
JOIN evaluations AS e USING (file, corruption, severity)
WHERE e.counts;
COMMENT ON VIEW class_errors IS 'One row for each class of each evaluation that counts';
COMMENT ON COLUMN class_errors.label IS 'Position of the class in the class map, from 0';
COMMENT ON COLUMN class_errors.num_samples IS 'Samples of the class';
COMMENT ON COLUMN class_errors.num_correct IS 'Correct predictions for these samples; error is 1 - num_correct / num_samples';

CREATE VIEW evaluation_batches AS
SELECT
    e.benchmark, e.dataset, e.experiment, e.subset, e.seed, e.stream, e.position, e.corruption, e.severity, e.file,
    unnest(range(len(b.num_samples))) AS batch,
    unnest(b.num_samples) AS num_samples,
    unnest(b.data_wait_s) AS data_wait_s,
    unnest(b.host_to_device_s) AS host_to_device_s,
    unnest(b.compute_s) AS compute_s,
    unnest(b.num_correct) AS num_correct,
    coalesce(unnest(b.num_unadapted), 0) AS num_unadapted,
    coalesce(unnest(b.num_resets), 0) AS num_resets,
    coalesce(unnest(b.num_unknown), 0) AS num_unknown,
    unnest(b.mean_entropy) AS mean_entropy,
    unnest(b.mean_confidence) AS mean_confidence,
    unnest(b.predicted_class_entropy) AS predicted_class_entropy,
    unnest(b.source_agreement) AS source_agreement
FROM batch_results AS b
JOIN evaluations AS e USING (file, corruption, severity);
COMMENT ON VIEW evaluation_batches IS 'Time and correct predictions of each batch of each evaluation; in a stream that mixes cells, its first cell has all batches';
COMMENT ON COLUMN evaluation_batches.batch IS 'Position of the batch in the pass, from 0';
COMMENT ON COLUMN evaluation_batches.num_samples IS 'Samples of the batch';
COMMENT ON COLUMN evaluation_batches.data_wait_s IS 'Seconds until the stream delivered the batch';
COMMENT ON COLUMN evaluation_batches.host_to_device_s IS 'Copy of the batch to the device, which on CUDA overlaps computation; 0 on a CPU';
COMMENT ON COLUMN evaluation_batches.compute_s IS 'Forward pass and adaptation of the batch';
COMMENT ON COLUMN evaluation_batches.num_correct IS 'Correct predictions of the batch';
COMMENT ON COLUMN evaluation_batches.num_unadapted IS 'Samples of the batch that were predicted without adaptation, for lack of time or because of adapt';
COMMENT ON COLUMN evaluation_batches.num_resets IS 'Resets of the method at the batch';
COMMENT ON COLUMN evaluation_batches.num_unknown IS 'Unknown samples of the batch, which count as neither correct nor wrong';
COMMENT ON COLUMN evaluation_batches.mean_entropy IS 'Mean entropy of the predictions of the batch, in nats';
COMMENT ON COLUMN evaluation_batches.mean_confidence IS 'Mean maximum softmax of the batch';
COMMENT ON COLUMN evaluation_batches.predicted_class_entropy IS 'Entropy of the shares of the predicted classes of the batch, in nats';
COMMENT ON COLUMN evaluation_batches.source_agreement IS 'Share of the predictions of the batch that the source model shares; NULL unless the method computes both';

CREATE VIEW estimated_errors AS
WITH clean AS (
    SELECT
        benchmark, dataset, subset, weights_sha256,
        avg(error) AS clean_error, avg(mean_confidence) AS clean_confidence
    FROM evaluations
    WHERE counts AND method = 'source' AND corruption = 'clean' AND mean_confidence IS NOT NULL
    GROUP BY ALL
),
bins AS (
    SELECT file, corruption, severity, unnest(bin_counts) AS size, unnest(bin_confidence_sums) AS confidences
    FROM (SELECT DISTINCT file, corruption, severity, bin_counts, bin_confidence_sums FROM evaluations WHERE counts)
),
chance AS ( -- in a bin, the sum of c (1 - c) is at most the sum for equal confidences
    SELECT file, corruption, severity, sum(confidences * greatest(0, 1 - confidences / size)) AS variance
    FROM bins WHERE size > 0
    GROUP BY ALL
),
estimates AS (
    SELECT
        e.*,
        clean_error IS NOT NULL AS is_calibrated,
        least(1, greatest(0, coalesce(clean_error + clean_confidence, 1) - mean_confidence)) AS estimate,
        1.96 * sqrt(variance) / num_samples AS half_width
    FROM evaluations AS e
    JOIN chance USING (file, corruption, severity)
    LEFT JOIN clean USING (benchmark, dataset, subset, weights_sha256)
    WHERE counts AND mean_confidence IS NOT NULL
)
SELECT
    benchmark, dataset, experiment, subset, seed, stream, position, corruption, severity, shift_position, num_samples,
    is_calibrated, estimate AS estimated_error, greatest(0, estimate - half_width) AS estimated_low,
    least(1, estimate + half_width) AS estimated_high, error, estimate - error AS estimation_gap,
    1 - source_agreement AS disagreement, generated
FROM estimates
ORDER BY benchmark, dataset, subset, experiment, seed, stream, position, shift_position, severity;
COMMENT ON VIEW estimated_errors IS 'One row for each evaluation that counts: its error as estimated without labels, and its true error';
COMMENT ON COLUMN estimated_errors.is_calibrated IS 'Whether the overconfidence of the source model with these weights was measured on clean images: its clean error + clean confidence - 1 is added';
COMMENT ON COLUMN estimated_errors.estimated_error IS '1 - mean_confidence, calibrated if is_calibrated, within [0, 1]';
COMMENT ON COLUMN estimated_errors.estimated_low IS 'Lower end of an interval around the estimate that contains the error in 95 % of cases if each prediction is correct with probability equal to its confidence';
COMMENT ON COLUMN estimated_errors.estimated_high IS 'Upper end of this interval';
COMMENT ON COLUMN estimated_errors.estimation_gap IS 'estimated_error - error: below 0, the model is worse than its confidence suggests';
COMMENT ON COLUMN estimated_errors.disagreement IS 'Share of predictions that differ from the source model''s, 1 - source_agreement; NULL unless the method computes both';

CREATE VIEW open_set AS
WITH streams AS (
    SELECT
        *, fingerprint_parts->>'$.method' AS method_settings,
        json_merge_patch(fingerprint_parts->'$.settings', '{"protocol": null}')::VARCHAR AS other_settings,
        -- An order is told apart by its fields, since protocols of one name can differ in them.
        json_merge_patch(coalesce(fingerprint_parts->'$.settings.protocol', '{}'), '{"unknown": null}')::VARCHAR AS closed_protocol
    FROM evaluations
    WHERE counts
),
closed AS (
    SELECT
        benchmark, dataset, subset, seed, stream, position, corruption, severity, weights_sha256,
        method_settings, other_settings, closed_protocol,
        min(experiment) AS closed_experiment, arg_min(error, experiment) AS closed_error
    FROM streams
    WHERE num_unknown IS NULL
    GROUP BY ALL
),
cells AS ( -- a row for each evaluation with unknown images, with the closed stream
    SELECT
        benchmark, dataset, o.experiment, subset, seed, corruption, o.counts_in_mean, o.generated, o.num_samples,
        o.num_unknown, o.error, closed_experiment, closed_error, o.auroc, o.fpr95, o.aupr, o.h_score
    FROM (FROM streams WHERE num_unknown IS NOT NULL) AS o
    LEFT JOIN closed USING (
        benchmark, dataset, subset, seed, stream, position, corruption, severity, weights_sha256,
        method_settings, other_settings, closed_protocol
    )
),
seeds AS (
    SELECT
        benchmark, dataset, experiment, subset, seed, any_value(closed_experiment) AS closed_experiment,
        count(*) AS num_cells, sum(num_unknown) AS num_unknown, sum(num_samples) AS num_samples, avg(error) AS error,
        CASE WHEN count(closed_error) = count(*) THEN avg(closed_error) END AS closed_error,
        avg(auroc) AS auroc, avg(fpr95) AS fpr95, avg(aupr) AS aupr, avg(h_score) AS h_score,
        bool_or(generated) AS generated
    FROM cells
    WHERE corruption <> 'clean' AND counts_in_mean IS DISTINCT FROM FALSE
    GROUP BY ALL
)
SELECT
    benchmark, dataset, experiment, subset, any_value(closed_experiment) AS closed_experiment, num_cells,
    count(*) AS num_runs,
    avg(num_unknown / (num_unknown + num_samples)) AS unknown_share,
    avg(error) AS error,
    stddev_samp(error) AS sd_error,
    avg(closed_error) AS closed_error,
    avg(error - closed_error) AS error_change,
    avg(auroc) AS auroc,
    avg(fpr95) AS fpr95,
    avg(aupr) AS aupr,
    avg(h_score) AS h_score,
    bool_or(generated) AS generated
FROM seeds
GROUP BY benchmark, dataset, experiment, subset, num_cells
ORDER BY benchmark, dataset, subset, error, experiment;
COMMENT ON VIEW open_set IS 'Mean over cells and seeds of each experiment with unknown images, compared with the closed stream of the same seeds';
COMMENT ON COLUMN open_set.num_cells IS 'Cells evaluated, without clean images';
COMMENT ON COLUMN open_set.num_runs IS 'Number of seeds that have these cells';
COMMENT ON COLUMN open_set.unknown_share IS 'Share of the unknown images in the streams';
COMMENT ON COLUMN open_set.error IS 'Mean top-1 error on the known images, in [0, 1]';
COMMENT ON COLUMN open_set.sd_error IS 'Standard deviation over seeds; NULL for a single seed';
COMMENT ON COLUMN open_set.closed_experiment IS 'Experiment without unknown images; NULL if it was not evaluated';
COMMENT ON COLUMN open_set.closed_error IS 'Its mean top-1 error on the same images; NULL if a cell was not evaluated';
COMMENT ON COLUMN open_set.error_change IS 'error - closed_error: above 0, the unknown images increased the error';
COMMENT ON COLUMN open_set.auroc IS 'Mean over cells of the probability that a known image has a higher score than an unknown one';
COMMENT ON COLUMN open_set.fpr95 IS 'Mean over cells of the share of unknown images above the threshold that keeps 95 % of known ones';
COMMENT ON COLUMN open_set.aupr IS 'Mean over cells of the average precision of known images against unknown ones';
COMMENT ON COLUMN open_set.h_score IS 'Mean over cells of h_score; see evaluations';

CREATE MACRO progress_by(every) AS TABLE
-- In a stream whose severity rises and falls, the mean over its cells would say nothing about these images.
SELECT
    * EXCLUDE (method, weights_sha256, order_hash, manifest_sha256)
    REPLACE (
        coalesce(
            avg(accuracy) FILTER (method = 'source') OVER (
                PARTITION BY
                    benchmark, dataset, subset, weights_sha256, stream, position, corruption, severity, order_hash,
                    manifest_sha256, first_image, num_images
            ),
            source_accuracy
        ) AS source_accuracy
    )
FROM (
    SELECT
        benchmark, dataset, experiment, subset, seed, stream, position,
        any_value(visit) AS visit,
        any_value(corruption) AS corruption,
        any_value(severity) AS severity,
        (any_value(num_before) + min(first_in_segment))::BIGINT AS first_image,
        sum(size)::BIGINT AS num_images,
        sum(correct)::BIGINT AS num_correct,
        sum(correct) / nullif(sum(size), 0) AS accuracy,
        any_value(source_accuracy) AS source_accuracy,
        sum(resets)::BIGINT AS num_resets,
        any_value(generated) AS generated,
        any_value(method) AS method,
        any_value(weights_sha256) AS weights_sha256,
        any_value(order_hash) AS order_hash,
        any_value(manifest_sha256) AS manifest_sha256
    FROM ( -- a row for each batch
        SELECT *, sum(size) OVER (PARTITION BY file, experiment ORDER BY batch) - size AS first_in_segment
        FROM (
            SELECT
                e.file,  benchmark, dataset, experiment, subset, seed, stream, position,
                unnest(range(len(b.num_samples))) AS batch,
                unnest(b.num_samples) - coalesce(unnest(b.num_unknown), 0) AS size, -- known images, as in num_samples of a cell
                unnest(b.num_correct) AS correct,
                coalesce(unnest(b.num_resets), 0) AS resets
            FROM batch_results AS b
            JOIN evaluations AS e USING (file, corruption, severity)
            WHERE counts
        )
    ) AS batches
    JOIN ( -- a row for each segment; one that mixes cells stores its batches with one cell, so accuracies are over all
        SELECT
            benchmark, dataset, experiment, subset, seed, stream, position, any_value(visit) AS visit,
            CASE WHEN count(DISTINCT (corruption, severity)) = 1 THEN any_value(corruption) END AS corruption,
            CASE WHEN count(DISTINCT (corruption, severity)) = 1 THEN any_value(severity) END AS severity,
            CASE WHEN count(source_accuracy) = count(*) THEN sum(source_accuracy * num_samples) / sum(num_samples) END
                AS source_accuracy,
            sum(sum(num_samples)) OVER (
                PARTITION BY benchmark, dataset, experiment, subset, seed, stream ORDER BY position
            ) - sum(num_samples) AS num_before,
            any_value(generated) AS generated,
            any_value(method) AS method,
            any_value(weights_sha256) AS weights_sha256,
            any_value(order_hash) AS order_hash,
            min(manifest_sha256) AS manifest_sha256
        FROM evaluations
        LEFT JOIN (
            SELECT
                benchmark, dataset, subset, weights_sha256, corruption, severity,
                sum(num_correct) / sum(num_samples) AS source_accuracy
            FROM evaluations
            WHERE counts AND method = 'source'
            GROUP BY ALL
        ) AS unadapted USING (benchmark, dataset, subset, weights_sha256, corruption, severity)
        WHERE counts
        GROUP BY benchmark, dataset, experiment, subset, seed, stream, position
    ) AS segments USING (benchmark, dataset, experiment, subset, seed, stream, position)
    GROUP BY benchmark, dataset, experiment, subset, seed, stream, position, first_in_segment // every
)
ORDER BY benchmark, dataset, subset, experiment, seed, stream, first_image;
COMMENT ON MACRO TABLE progress_by IS 'Accuracy along each stream: a row for about each `every` images of a segment, over the batches that begin among them';

CREATE VIEW stream_progress AS
FROM progress_by(1000);
COMMENT ON VIEW stream_progress IS 'Accuracy along each stream: a row for about each 1,000 images of a segment, over the batches that begin among them';
COMMENT ON COLUMN stream_progress.corruption IS 'Shift; NULL if the segment mixes cells';
COMMENT ON COLUMN stream_progress.severity IS 'Severity; NULL if the segment mixes cells';
COMMENT ON COLUMN stream_progress.first_image IS 'Position of the first image among the known images of the stream, from 0';
COMMENT ON COLUMN stream_progress.num_images IS 'Known images of these batches';
COMMENT ON COLUMN stream_progress.num_correct IS 'Correct predictions for these images';
COMMENT ON COLUMN stream_progress.accuracy IS 'num_correct / num_images';
COMMENT ON COLUMN stream_progress.num_resets IS 'Resets of the method at these batches';
COMMENT ON COLUMN stream_progress.source_accuracy IS 'Accuracy of method source with the same weights and subset: for these images if it ran over the same stream of the same shards in the same batches, otherwise for the whole cell or all mixed cells; NULL if one of them was not evaluated';

CREATE VIEW stream_collapses AS
WITH behind AS (
    SELECT
        *,
        bool_and(accuracy < source_accuracy) OVER (
            PARTITION BY benchmark, dataset, experiment, subset, seed, stream
            ORDER BY first_image ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING
        ) AS is_behind_to_the_end
    FROM stream_progress
)
SELECT
    benchmark, dataset, experiment, subset, seed, stream,
    sum(num_images)::BIGINT AS num_images,
    sum(num_correct) / sum(num_images) AS accuracy,
    sum(source_accuracy * num_images) / sum(num_images) AS source_accuracy,
    CASE WHEN count(*) FILTER (is_behind_to_the_end) >= 5 THEN
        min(first_image) FILTER (is_behind_to_the_end)
    END AS collapsed_at,
    CASE WHEN collapsed_at IS NOT NULL THEN
        sum(num_correct) FILTER (is_behind_to_the_end) / sum(num_images) FILTER (is_behind_to_the_end)
    END AS accuracy_after,
    any_value(generated) AS generated
FROM behind
GROUP BY benchmark, dataset, experiment, subset, seed, stream
HAVING count(source_accuracy) = count(*)
ORDER BY benchmark, dataset, subset, experiment, seed, stream;
COMMENT ON VIEW stream_collapses IS 'One row for each stream whose cells method source evaluated too: whether and where the stream collapsed, that is, stayed worse than the unadapted model to the end (Press et al. 2023)';
COMMENT ON COLUMN stream_collapses.num_images IS 'Images of the stream so far';
COMMENT ON COLUMN stream_collapses.accuracy IS 'Accuracy over these images';
COMMENT ON COLUMN stream_collapses.source_accuracy IS 'Accuracy of method source over the same images or cells, as in stream_progress';
COMMENT ON COLUMN stream_collapses.collapsed_at IS 'Position in the stream, from 0, from which all rows of stream_progress are below source_accuracy to the end; NULL if there are fewer than five such rows';
COMMENT ON COLUMN stream_collapses.accuracy_after IS 'Accuracy from there to the end';

CREATE MACRO utility_in_time(budget_s, threshold_s) AS TABLE
SELECT
    benchmark, dataset, experiment, subset, seed, stream, position, corruption, severity,
    count(*) AS num_batches,
    sum(num_correct) / sum(num_samples) AS accuracy,
    sum(in_time * num_samples) / sum(num_samples) AS in_time_share,
    sum(in_time * num_correct) / sum(num_samples) AS deadline_utility,
    sum(linear * num_correct) / sum(num_samples) AS linear_utility,
    sum(decayed * num_correct) / sum(num_samples) AS continuous_utility,
    sum(decayed * num_samples) / sum(num_samples) AS timeliness,
    sum(decayed * num_correct) / sum(num_samples) - accuracy * timeliness AS alignment
FROM (
    SELECT
        * REPLACE (num_samples - num_unknown AS num_samples),
        CASE WHEN threshold_s > budget_s THEN greatest(0, compute_s - budget_s) / (threshold_s - budget_s) END AS lateness,
        1 / (1 + lateness) AS decayed,
        CASE WHEN threshold_s > budget_s THEN greatest(0, 1 - lateness) END AS linear,
        (compute_s <= threshold_s)::INTEGER AS in_time
    FROM evaluation_batches
    SEMI JOIN (FROM evaluations WHERE counts) USING (benchmark, dataset, experiment, subset, seed, stream, position)
)
GROUP BY benchmark, dataset, experiment, subset, seed, stream, position, corruption, severity
ORDER BY benchmark, dataset, subset, experiment, seed, stream, position;
COMMENT ON MACRO TABLE utility_in_time IS 'Utility of each pass if late predictions lose value: a batch''s predictions are ready after its compute_s, and time above budget_s costs; at threshold_s all of their value is lost, or half of it by hyperbolic decay';

CREATE VIEW throughput_history AS
SELECT
    benchmark, dataset, experiment, subset, seed, stream, position, corruption, severity, file, run_id, started_at,
    conditions, device, other_load, images_per_s,
    images_per_s / median(images_per_s) OVER same_before AS speed_ratio,
    count(*) OVER same_before AS num_earlier_alike,
    data_wait_s / wall_s AS data_wait_share, device_idle_s / wall_s AS device_idle_share, peak_cuda_gib, peak_rss_gib
FROM evaluations
WINDOW same_before AS (
    PARTITION BY benchmark, dataset, experiment, subset, seed, stream, position, corruption, severity, conditions
    ORDER BY started_at, file ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
)
ORDER BY benchmark, dataset, experiment, subset, seed, stream, position, shift_position, severity, started_at;
COMMENT ON VIEW throughput_history IS 'Every evaluation ever made, for plots of speed over runs; speeds are comparable only if conditions are equal';
COMMENT ON COLUMN throughput_history.speed_ratio IS 'images_per_s / median of the earlier evaluations of the cell by this experiment with equal conditions; NULL if there are none';
COMMENT ON COLUMN throughput_history.num_earlier_alike IS 'Number of earlier evaluations of the cell by this experiment with equal conditions';
COMMENT ON COLUMN throughput_history.data_wait_share IS 'data_wait_s / wall_s';
COMMENT ON COLUMN throughput_history.device_idle_share IS 'device_idle_s / wall_s: share of the time that the device was idle';

CREATE VIEW runs AS
SELECT
    run_id,
    max(started_at) AS started_at,
    count(*) AS num_evaluations,
    list(DISTINCT benchmark ORDER BY benchmark) AS benchmarks,
    list(DISTINCT experiment ORDER BY experiment) AS experiments,
    sum(wall_s) AS wall_s
FROM evaluations
GROUP BY run_id
ORDER BY started_at DESC;
COMMENT ON VIEW runs IS 'Dagster runs that evaluated something, the newest first';
COMMENT ON COLUMN runs.started_at IS 'Start time of the run''s last evaluation, UTC';
COMMENT ON COLUMN runs.num_evaluations IS 'Number of evaluations recorded';
COMMENT ON COLUMN runs.benchmarks IS 'Benchmarks of these evaluations';
COMMENT ON COLUMN runs.experiments IS 'Experiments of these evaluations';

CREATE VIEW run_comparison AS
SELECT
    a.benchmark, a.dataset, a.experiment, a.subset, a.seed, a.stream, a.position, a.corruption, a.severity,
    a.run_id AS run_a, b.run_id AS run_b,
    a.error AS error_a, b.error AS error_b, b.error - a.error AS error_change,
    a.images_per_s AS images_per_s_a, b.images_per_s AS images_per_s_b, b.images_per_s / a.images_per_s AS speed_ratio,
    a.conditions = b.conditions AS same_conditions,
    a.generated OR b.generated AS generated,
    a.fingerprint = b.fingerprint AS same_settings,
    a.predictions_sha256 = b.predictions_sha256 AS same_predictions
FROM evaluations AS a
JOIN evaluations AS b USING (benchmark, dataset, experiment, subset, seed, stream, position, corruption, severity)
WHERE a.run_id <> b.run_id;
COMMENT ON VIEW run_comparison IS 'The same cells of the same experiments in two runs side by side; filter by run_a and run_b';
COMMENT ON COLUMN run_comparison.run_a IS 'One Dagster run';
COMMENT ON COLUMN run_comparison.run_b IS 'Another Dagster run';
COMMENT ON COLUMN run_comparison.error_a IS 'Top-1 error in run_a';
COMMENT ON COLUMN run_comparison.error_b IS 'Top-1 error in run_b';
COMMENT ON COLUMN run_comparison.error_change IS 'error_b - error_a';
COMMENT ON COLUMN run_comparison.images_per_s_a IS 'Speed in run_a';
COMMENT ON COLUMN run_comparison.images_per_s_b IS 'Speed in run_b';
COMMENT ON COLUMN run_comparison.speed_ratio IS 'images_per_s_b / images_per_s_a';
COMMENT ON COLUMN run_comparison.same_conditions IS 'Whether all conditions that affect speed besides model, method and data are equal; otherwise the speeds are not comparable';
COMMENT ON COLUMN run_comparison.same_settings IS 'Whether everything that determines the predictions is equal';
COMMENT ON COLUMN run_comparison.same_predictions IS 'Whether all predicted labels are equal';

CREATE VIEW stage_timings AS
WITH stages AS (
    SELECT benchmark, dataset, experiment, subset, unnest([
        {'stage': 'scan metadata', 's': metadata_scan_s, 'position': 3},
        {'stage': 'set up', 's': pipeline_setup_s, 'position': 4},
        {'stage': 'wait for data', 's': data_wait_s, 'position': 5},
        {'stage': 'compute', 's': compute_s, 'position': 6},
        {'stage': 'other', 's': greatest(0, wall_s - data_wait_s - compute_s), 'position': 7}
    ], recursive := TRUE)
    FROM evaluations
    WHERE counts
    UNION ALL
    SELECT benchmark, dataset, NULL, NULL, unnest([
        {'stage': 'write shards', 's': write_wall_s, 'position': 1},
        {'stage': 'read back', 's': read_back_wall_s, 'position': 2}
    ], recursive := TRUE)
    FROM shard_sets
)
SELECT
    benchmark, dataset, experiment, subset, stage,
    count(s) AS num_cells,
    sum(s) AS total_s,
    sum(s) / sum(sum(s)) OVER (PARTITION BY benchmark, dataset, experiment, subset) AS share
FROM stages
GROUP BY benchmark, dataset, experiment, subset, stage, position
HAVING count(s) > 0
ORDER BY benchmark, dataset, experiment NULLS FIRST, subset, position;
COMMENT ON VIEW stage_timings IS 'Time of the latest shard sets and evaluations by stage; copies to the device overlap computation and are not added';
COMMENT ON COLUMN stage_timings.experiment IS 'Name of the experiment; NULL for the shards, which all experiments share';
COMMENT ON COLUMN stage_timings.subset IS 'Which samples of the cell; NULL for the shards';
COMMENT ON COLUMN stage_timings.stage IS 'Name of the stage; rows are in order of execution';
COMMENT ON COLUMN stage_timings.num_cells IS 'Number of cells with known time, counting clean images and seeds';
COMMENT ON COLUMN stage_timings.total_s IS 'Seconds, over these cells';
COMMENT ON COLUMN stage_timings.share IS 'Share of the time of all stages of this experiment, or of the shards';

CREATE VIEW loader_comparison AS
WITH known AS (
    SELECT
        *,
        -- Settings hold the recipe; the other columns are the data and the machine.
        md5(concat_ws(' | ', benchmark, dataset, json_merge_patch(settings, '{"loader": null}'), architecture, manifest_sha256,
            num_samples, num_epochs_done, device, cpu_model, num_cores, compute_threads, num_ranks, torch_version)) AS comparison
    FROM training_runs
    WHERE counts
),
trainings AS (
    SELECT
        *,
        first_value(weights_sha256) OVER (PARTITION BY comparison ORDER BY loader <> 'indexed', loader, model) AS expected_sha256
    FROM known
    QUALIFY count(DISTINCT loader) OVER (PARTITION BY comparison) > 1
)
SELECT
    benchmark, dataset, model, loader,
    num_samples * num_epochs_done AS num_samples,
    images_per_s, time_to_first_batch_s, data_wait_s,
    data_wait_s * images_per_s / (num_samples * num_epochs_done) AS data_wait_share,
    num_inodes, validation_error, weights_sha256 = expected_sha256 AS same_weights
FROM trainings
ORDER BY benchmark, dataset, comparison, loader <> 'indexed', loader, model;
COMMENT ON VIEW loader_comparison IS 'Trainings that differ only in their loader, on the same machine; whether the page cache was warm is not known';
COMMENT ON COLUMN loader_comparison.num_samples IS 'Samples of all epochs';
COMMENT ON COLUMN loader_comparison.data_wait_share IS 'Share of the time in which the device waited for data';
COMMENT ON COLUMN loader_comparison.same_weights IS 'Whether the weights equal those with the loader indexed, or with the first loader if indexed is missing';

CREATE VIEW first_system_log AS
SELECT
    e.benchmark, e.dataset, e.experiment, e.subset, e.seed, e.stream, e.position, e.corruption, e.severity,
    s.num_classes_found AS classes,
    s.num_shards AS archive_shards,
    s.num_samples AS images_indexed,
    s.payload_bytes / 1073741824 AS raw_payload_gib,
    s.shard_bytes / 1073741824 AS archive_gib,
    s.num_shards + 1 AS inode_objects,
    s.num_samples + s.num_classes_found + 1 AS projected_loose_objects,
    (s.num_samples + s.num_classes_found + 1) / (s.num_shards + 1) AS inode_factor,
    e.metadata_scan_s,
    e.pipeline_setup_s AS datapipe_init_s,
    e.time_to_first_batch_s AS first_batch_fetch_s,
    e.first_batch_compute_s + coalesce(b.host_to_device_s[1], 0) AS first_batch_compute_s,
    e.wall_s AS pass_total_s,
    e.images_per_s,
    e.num_batches,
    e.num_samples + coalesce(e.num_unknown, 0) AS images_processed,
    e.peak_cuda_gib,
    e.batch_size,
    e.decode_threads AS num_workers,
    e.device <> 'cpu' AS pin_memory,
    s.stored_order || ', read as ' || e.stream_order AS shuffle,
    e.device
FROM evaluations AS e
LEFT JOIN batch_results AS b USING (file, corruption, severity)
LEFT JOIN shard_sets AS s USING (benchmark, dataset, corruption, severity, manifest_sha256)
WHERE e.counts
ORDER BY e.benchmark, e.dataset, e.subset, e.experiment, e.seed, e.stream, e.position, e.shift_position, e.severity;
COMMENT ON VIEW first_system_log IS 'Each evaluation that counts, in the log format and definitions of torch-archive-dataloader, the project''s first system';
COMMENT ON COLUMN first_system_log.classes IS 'Classes with at least one image in the split';
COMMENT ON COLUMN first_system_log.archive_shards IS 'Tar files of the split';
COMMENT ON COLUMN first_system_log.images_indexed IS 'Images in the tar files';
COMMENT ON COLUMN first_system_log.raw_payload_gib IS 'Sum of the images'' sizes, in 2^30 bytes';
COMMENT ON COLUMN first_system_log.archive_gib IS 'Sum of the tar files'' sizes, in 2^30 bytes';
COMMENT ON COLUMN first_system_log.inode_objects IS 'Tar files and their folder; num_inodes of shard_sets counts the files of the manifest too';
COMMENT ON COLUMN first_system_log.projected_loose_objects IS 'Images, folders of the classes found, and the folder of the split';
COMMENT ON COLUMN first_system_log.inode_factor IS 'projected_loose_objects / inode_objects';
COMMENT ON COLUMN first_system_log.metadata_scan_s IS 'Reading the manifest and checking that the shards match it; the first system opened each tar file';
COMMENT ON COLUMN first_system_log.datapipe_init_s IS 'Constructing the stream';
COMMENT ON COLUMN first_system_log.first_batch_fetch_s IS 'From the start of the pass until the first batch arrives';
COMMENT ON COLUMN first_system_log.first_batch_compute_s IS 'Copy to the device and computation of the first batch, cold caches included; in a stream that mixes cells, only its first cell has the copy';
COMMENT ON COLUMN first_system_log.pass_total_s IS 'The whole pass: starting, fetching and computing';
COMMENT ON COLUMN first_system_log.images_per_s IS 'images_processed / pass_total_s';
COMMENT ON COLUMN first_system_log.images_processed IS 'Images evaluated, each once';
COMMENT ON COLUMN first_system_log.num_workers IS 'Threads that read and decode; the first system had processes';
COMMENT ON COLUMN first_system_log.pin_memory IS 'Whether batches wait in pinned memory';
COMMENT ON COLUMN first_system_log.shuffle IS 'Order of the samples in the shards with its seed, and the order in which the segment was read: both exact, without the first system''s buffers';
