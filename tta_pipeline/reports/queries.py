"""The questions that the report asks the database, as SQL that a reader can repeat."""

LEADERBOARD = """
SELECT experiment, model, method, num_cells, mean_error, mean_error_at_5, clean_error, mean_ece,
       images_per_s, forwards_per_sample, backwards_per_sample, num_diverged
FROM leaderboard WHERE benchmark = ? ORDER BY mean_error
"""

CELL_ERRORS = """
SELECT experiment, corruption, severity, avg(error) AS error
FROM latest_evaluations WHERE benchmark = ? AND severity > 0 GROUP BY ALL
"""

WHERE_THE_TIME_GOES = """
SELECT experiment, sum(metadata_scan_s) AS scan_s, sum(pipeline_setup_s) AS setup_s, sum(data_wait_s) AS data_wait_s,
       sum(compute_s) AS compute_s, sum(wall_s) AS wall_s, sum(num_samples) AS num_samples
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
