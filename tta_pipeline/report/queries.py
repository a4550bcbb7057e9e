"""SQL queries of the report and of `tta-pipeline leaderboard`, which a reader can repeat."""

LEADERBOARD = """
SELECT experiment, mean_error, sd_error, error_worst_10pct_seeds, mean_error_at_5, clean_error, mce, mean_ece,
       1000 / images_per_s AS ms_per_image, protocol, model, method, hyperparameters, forwards_per_sample,
       backwards_per_sample, subset, num_runs, num_cells, num_cells_asked, num_diverged, without_file, under_load,
       generated, untrained
FROM leaderboard WHERE benchmark = ? AND dataset = ?
ORDER BY max(num_cells) OVER (PARTITION BY protocol) DESC, protocol,
         subset, num_cells < num_cells_asked, num_cells DESC, mean_error, experiment
"""

ALL_LEADERBOARDS = """
SELECT benchmark, dataset, generated, untrained, experiment, protocol, hyperparameters, subset, num_cells,
       num_cells_asked, num_runs, mean_error, sd_error, error_worst_10pct_seeds, mean_error_at_5, clean_error, mce,
       relative_mce, mean_top5_error, mean_nll, mean_ece, images_per_s, 1000 / images_per_s AS ms_per_image,
       forwards_per_sample, backwards_per_sample, under_load, devices_differ_by, num_diverged, without_file
FROM leaderboard WHERE benchmark = coalesce(?, benchmark)
ORDER BY benchmark, dataset, max(num_cells) OVER (PARTITION BY benchmark, dataset, protocol) DESC, protocol,
         subset, num_cells < num_cells_asked, num_cells DESC, mean_error, experiment
"""

BOARD_WITH_INTERVALS = """
FROM board
POSITIONAL JOIN (SELECT unnest(?::DOUBLE[]) AS error_low, unnest(?::DOUBLE[]) AS error_high)
"""
"""`ALL_LEADERBOARDS`, kept as `board`, with the ends of the interval of each row."""

ORDERS = """
SELECT benchmark, dataset, subset, experiment, sum(DISTINCT hash(corruption, severity, order_hash))
FROM evaluations
WHERE counts AND corruption <> 'clean' AND counts_in_mean IS DISTINCT FROM FALSE AND method <> 'source'
GROUP BY ALL
"""

BY_CORRUPTION = """
SELECT benchmark, dataset, generated, untrained, corruption, experiment, protocol, subset, num_cells, num_runs,
       mean_error, sd_error, error_at_5, mean_top5_error, mean_ece
FROM corruption_errors WHERE benchmark = coalesce(?, benchmark)
ORDER BY benchmark, dataset, subset, shift_position,
         max(num_cells) OVER (PARTITION BY benchmark, dataset, protocol) DESC, protocol, num_cells DESC, mean_error,
         experiment
"""

DIFFERING_DEVICES = """
SELECT experiment, max(devices_differ_by) FROM evaluations
WHERE counts AND devices_differ_by IS NOT NULL AND benchmark = coalesce(?, benchmark) GROUP BY experiment ORDER BY 1
"""

UNEVEN_CELLS = """
WITH cells AS (
    SELECT benchmark, dataset, corruption, severity, num_samples AS num_images, num_classes_found FROM shard_sets
    SEMI JOIN (FROM evaluations WHERE counts) USING (benchmark, dataset, corruption, severity, manifest_sha256)
    WHERE corruption <> 'clean' AND benchmark = coalesce(?, benchmark)
),
usual AS (
    SELECT benchmark, dataset, num_images AS usual_images, num_classes_found AS usual_classes
    FROM (SELECT *, count(*) OVER same_images AS votes FROM cells
          WINDOW same_images AS (PARTITION BY benchmark, dataset, num_images, num_classes_found))
    QUALIFY row_number() OVER (
        PARTITION BY benchmark, dataset ORDER BY votes DESC, num_images DESC, num_classes_found DESC
    ) = 1
)
SELECT benchmark, corruption || '|' || severity, num_images, num_classes_found, usual_images, usual_classes
FROM cells JOIN usual USING (benchmark, dataset)
WHERE num_images <> usual_images OR num_classes_found <> usual_classes
ORDER BY ALL
"""

COMPARISON = """
SELECT benchmark, dataset, generated, experiment, subset, seed, corruption, severity, error_a, error_b, error_change,
       images_per_s_a, images_per_s_b, speed_ratio, same_settings, same_predictions
FROM run_comparison WHERE run_a = ? AND run_b = ?
ORDER BY benchmark, dataset, experiment, subset, seed, stream, position, corruption, severity
"""

RUNS = "SELECT DISTINCT run_id FROM evaluations WHERE starts_with(run_id, ?) ORDER BY run_id"

CELL_ERRORS = """
SELECT experiment, corruption, severity, error, generated
FROM cell_errors
WHERE benchmark = ? AND dataset = ? AND corruption <> 'clean' ORDER BY experiment, shift_position, severity
"""

CORRUPTION_ERRORS = """
SELECT experiment, generated, subset, corruption, num_cells, num_runs, mean_error, sd_error, error_at_5, mean_ece, mce
FROM corruption_errors
LEFT JOIN (SELECT benchmark, dataset, experiment, subset, max(mce) AS mce FROM leaderboard GROUP BY ALL)
    USING (benchmark, dataset, experiment, subset)
WHERE benchmark = ? AND dataset = ? ORDER BY experiment, subset, shift_position
"""

CALIBRATION = """
SELECT experiment, bin, sum(num_samples) AS num_samples, sum(confidence_sum) / sum(num_samples) AS confidence,
       sum(num_correct) / sum(num_samples) AS accuracy, bool_or(generated) AS generated
FROM calibration_bins
WHERE benchmark = ? AND dataset = ? AND corruption <> 'clean'
GROUP BY ALL HAVING sum(num_samples) > 0 ORDER BY experiment, bin
"""

ESTIMATED_ERRORS = """
SELECT experiment, subset, corruption, severity, seed, stream, position, estimated_error, estimated_low, estimated_high,
       error, estimation_gap, is_calibrated, disagreement, generated
FROM estimated_errors WHERE benchmark = ? AND dataset = ?
ORDER BY experiment, subset, seed, stream, position, shift_position, severity
"""

OPEN_SET = """
SELECT experiment, subset, error, sd_error, closed_error, error_change, auroc, fpr95, aupr, h_score, num_cells,
       num_runs, unknown_share, closed_experiment, generated
FROM open_set WHERE benchmark = ? AND dataset = ?
"""

STREAM_PROGRESS = """
WITH streams AS (
    SELECT benchmark, dataset, experiment, subset, seed, stream, any_value(protocol) AS protocol
    FROM evaluations WHERE counts GROUP BY ALL
),
several_steps AS (
    SELECT benchmark, dataset, experiment, subset, seed, stream FROM stream_progress GROUP BY ALL HAVING count(*) > 1
)
SELECT experiment, protocol, subset, seed, stream, first_image, num_images, accuracy, num_resets, collapsed_at,
       p.generated
FROM stream_progress AS p
SEMI JOIN several_steps USING (benchmark, dataset, experiment, subset, seed, stream)
JOIN streams USING (benchmark, dataset, experiment, subset, seed, stream)
LEFT JOIN (SELECT * EXCLUDE (num_images, accuracy, generated) FROM stream_collapses)
    USING (benchmark, dataset, experiment, subset, seed, stream)
WHERE benchmark = ? AND dataset = ? AND num_images > 0 -- none if all are unknown
ORDER BY protocol, stream, experiment, subset, seed, first_image
"""

WHERE_THE_TIME_GOES = """
SELECT experiment, subset, sum(num_samples) AS num_samples,
       sum(metadata_scan_s) AS scan_s, sum(pipeline_setup_s) AS setup_s, sum(data_wait_s) AS data_wait_s,
       sum(compute_s) AS compute_s, sum(greatest(0, wall_s - data_wait_s - compute_s)) AS other_s,
       sum(wall_s) AS wall_s, sum(host_to_device_s) AS copy_beside_computing_s
FROM evaluations WHERE counts AND benchmark = ? AND dataset = ? GROUP BY ALL
ORDER BY sum(wall_s) / sum(num_samples), experiment
"""

THROUGHPUT = """
SELECT experiment, conditions, run_id, min(started_at) AS started_at,
       count(*) AS num_cells, median(images_per_s) AS images_per_s
FROM throughput_history WHERE benchmark = ? AND dataset = ? GROUP BY ALL
ORDER BY started_at, experiment, conditions, run_id
"""

LOADERS = """
SELECT model, loader, num_samples, images_per_s, time_to_first_batch_s, data_wait_s, data_wait_share, num_inodes,
       validation_error, same_weights
FROM loader_comparison WHERE benchmark = ? AND dataset = ?
"""

SAMPLES = """
SELECT corruption, severity, error, num_samples, file, predictions_sha256
FROM evaluations WHERE counts AND benchmark = ? AND dataset = ? AND experiment = ? AND severity = ?
ORDER BY shift_position, seed
"""

SHARD_SETS = """
SELECT count(*) AS cells, sum(num_samples) AS images, sum(num_shards) AS shards, sum(shard_bytes) / 1e6 AS shard_mb,
       sum(num_loose_inodes) AS loose_inodes, sum(num_inodes) AS inodes,
       sum(num_loose_inodes) / sum(num_inodes) AS inode_reduction
FROM shard_sets WHERE benchmark = ? AND dataset = ?
HAVING count(*) > 0
"""

ENVIRONMENT = """
SELECT DISTINCT device, versions->>'host' AS host, versions->>'platform' AS platform, versions->>'python' AS python,
       versions->>'torch' AS torch, versions->>'tta_pipeline' AS tta_pipeline
FROM results SEMI JOIN (FROM evaluations WHERE counts AND benchmark = ? AND dataset = ?) USING (file)
"""

TRAININGS = """
SELECT model, architecture, fine_tuned, augmentation, optimizer, lr, batch_size, num_epochs_done AS epochs,
       selected, train_error, validation_error, validated_on, best_epoch, best_validation_error, images_per_s,
       data_wait_s / (SELECT sum(wall_s) FROM training_epochs AS e WHERE e.file = r.file) AS data_wait_share,
       wall_s, num_resumed, num_ranks
FROM training_runs AS r WHERE counts AND benchmark = ? AND dataset = ? ORDER BY model
"""

LEARNING_CURVES = """
SELECT model, epoch, e.train_error, e.validation_error, train_loss, validation_loss, e.lr, e.images_per_s,
       e.data_wait_s, e.wall_s
FROM training_epochs AS e JOIN training_runs USING (file)
WHERE counts AND benchmark = ? AND dataset = ? ORDER BY model, epoch
"""

DATASETS = """
SELECT dataset, experiment, generated, untrained, model, method, protocol, subset, num_cells, num_cells_asked,
       num_runs, mean_error, sd_error,
       coalesce(clean_error, avg(clean_error) OVER (PARTITION BY experiment, subset)) AS clean_error
FROM leaderboard WHERE benchmark = ? AND mean_error IS NOT NULL ORDER BY subset, experiment, dataset
"""

GROUP_MEANS = """
SELECT shift_group, experiment, generated, protocol, subset, num_sets, num_cells, num_runs, mean_error, error_low,
       error_high, published_error, published_in, 1000 / images_per_s AS ms_per_image, forwards_per_sample,
       backwards_per_sample, datasets
FROM group_means WHERE benchmark = ?
ORDER BY shift_group, subset, max(num_cells) OVER (PARTITION BY protocol) DESC, protocol, num_cells DESC, datasets,
         mean_error, experiment
"""

TUNING_TRIALS = """
SELECT experiment, t.hyperparameters, t.error, is_chosen, t.num_diverged, t.wall_s
FROM tuning_trials AS t JOIN tunings USING (file)
WHERE counts AND benchmark = ? AND dataset = ? ORDER BY experiment, t.error, t.hyperparameters
"""

TUNING_CRITERIA = """
SELECT experiment, c.criterion, images, hyperparameters, score, reported_error, gap, decides
FROM tuning_criteria AS c JOIN tunings USING (file)
WHERE counts AND benchmark = ? AND dataset = ? AND gap IS NOT NULL ORDER BY experiment, gap, c.criterion, images
"""
