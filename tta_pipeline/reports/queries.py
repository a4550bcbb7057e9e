"""The questions that the report and `tta-pipeline metrics` ask the database, as SQL that a reader can repeat."""

LEADERBOARD = """
SELECT experiment, model, method, protocol, subset, num_cells, num_runs, mean_error, sd_error, mean_error_at_5,
       clean_error, mce, mean_ece, images_per_s, forwards_per_sample, backwards_per_sample, num_diverged
FROM leaderboard WHERE benchmark = ? ORDER BY subset, mean_error
"""

ALL_LEADERBOARDS = """
SELECT benchmark, experiment, subset, num_cells, num_runs, mean_error, sd_error, mean_error_at_5, clean_error, mce,
       relative_mce, mean_top5_error, mean_nll, mean_ece, images_per_s, forwards_per_sample, backwards_per_sample,
       num_diverged
FROM leaderboard ORDER BY benchmark, subset, num_cells DESC, mean_error
"""

BY_CORRUPTION = """
SELECT benchmark, corruption, experiment, subset, num_cells, num_runs, mean_error, sd_error, error_at_5,
       mean_top5_error, mean_ece
FROM corruption_errors ORDER BY benchmark, subset, corruption, mean_error
"""

COMPARISON = """
SELECT benchmark, experiment, subset, seed, corruption, severity, error_a, error_b, error_change,
       images_per_s_a, images_per_s_b, speed_ratio, same_settings, same_predictions
FROM run_comparison WHERE run_a = ? AND run_b = ?
ORDER BY benchmark, experiment, subset, seed, corruption, severity, stream, position
"""

RUNS = "SELECT DISTINCT run_id FROM evaluations WHERE starts_with(run_id, ?) ORDER BY run_id"

# An experiment whose subset was changed has results on both: the newer one counts.
CELL_ERRORS = """
SELECT experiment, corruption, severity, error
FROM cell_errors
SEMI JOIN (SELECT benchmark, experiment, max_by(subset, started_at) AS subset FROM latest_evaluations GROUP BY ALL)
    USING (benchmark, experiment, subset)
WHERE benchmark = ? AND severity > 0
"""

WHERE_THE_TIME_GOES = """
SELECT experiment, subset, sum(staging_s) AS staging_s, sum(metadata_scan_s) AS scan_s,
       sum(pipeline_setup_s) AS setup_s, sum(data_wait_s) AS data_wait_s, sum(compute_s) AS compute_s,
       sum(wall_s) AS wall_s, sum(num_samples) AS num_samples
FROM latest_evaluations WHERE benchmark = ? GROUP BY ALL ORDER BY wall_s
"""

SHARD_SETS = """
SELECT count(*) AS cells, sum(num_samples) AS images, sum(num_shards) AS shards, sum(shard_bytes) / 1e6 AS shard_mb,
       sum(num_loose_inodes) AS loose_inodes, sum(num_inodes) AS inodes,
       sum(num_loose_inodes) / sum(num_inodes) AS inode_reduction
FROM (SELECT * FROM shard_sets WHERE benchmark = ? AND shard_set = 'shards'
      QUALIFY row_number() OVER (PARTITION BY corruption, severity ORDER BY sequence DESC) = 1)
"""

ENVIRONMENT = """
SELECT DISTINCT device, versions->>'host' AS host, versions->>'platform' AS platform, versions->>'python' AS python,
       versions->>'torch' AS torch, versions->>'tta_pipeline' AS tta_pipeline
FROM latest_evaluations WHERE benchmark = ?
"""
