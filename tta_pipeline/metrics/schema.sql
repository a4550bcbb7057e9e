-- The database that `metrics.duckdb` holds. It is derived: every row comes from a result record, and
-- `tta-pipeline rebuild-metrics` makes it anew. Change SCHEMA_VERSION in database.py with every change here.

CREATE TABLE ingested (path VARCHAR PRIMARY KEY);
COMMENT ON TABLE ingested IS 'Result records that are in this database, relative to the data root';

CREATE TABLE shard_sets (
    run_id VARCHAR NOT NULL,
    sequence INTEGER NOT NULL,
    benchmark VARCHAR NOT NULL,
    shard_set VARCHAR NOT NULL,
    corruption VARCHAR NOT NULL,
    severity INTEGER NOT NULL CHECK (severity BETWEEN 0 AND 5),
    source_kind VARCHAR NOT NULL,
    generated BOOLEAN NOT NULL,
    manifest_sha256 VARCHAR NOT NULL,
    class_map_sha256 VARCHAR NOT NULL,
    order_hash VARCHAR NOT NULL,
    num_classes INTEGER NOT NULL,
    num_samples BIGINT NOT NULL CHECK (num_samples > 0),
    num_shards INTEGER NOT NULL,
    payload_bytes BIGINT NOT NULL,
    shard_bytes BIGINT NOT NULL,
    num_inodes INTEGER NOT NULL,
    num_loose_inodes INTEGER NOT NULL,
    inode_reduction DOUBLE NOT NULL CHECK (isfinite(inode_reduction)),
    write_wall_s DOUBLE CHECK (isfinite(write_wall_s)),
    write_images_per_s DOUBLE CHECK (isfinite(write_images_per_s)),
    read_back_wall_s DOUBLE NOT NULL CHECK (isfinite(read_back_wall_s)),
    started_at TIMESTAMPTZ NOT NULL,
    versions JSON NOT NULL,
    PRIMARY KEY (benchmark, shard_set, corruption, severity, sequence)
);
COMMENT ON TABLE shard_sets IS 'One row for each manifest built: what one cell holds and what it took to make it';
COMMENT ON COLUMN shard_sets.shard_set IS 'The transform that made the set from the benchmark''s first one, which is called shards';
COMMENT ON COLUMN shard_sets.num_inodes IS 'Shards, manifest files and their folder';
COMMENT ON COLUMN shard_sets.num_loose_inodes IS 'Images, class folders and the folder of the cell';
COMMENT ON COLUMN shard_sets.inode_reduction IS 'num_loose_inodes / num_inodes';
COMMENT ON COLUMN shard_sets.write_wall_s IS 'Seconds to read the source and write its shards, fsync included; NULL for shards that somebody else made';
COMMENT ON COLUMN shard_sets.read_back_wall_s IS 'Seconds to read the shards back, hash every sample and publish the manifest';

CREATE TABLE shards (
    benchmark VARCHAR NOT NULL,
    shard_set VARCHAR NOT NULL,
    corruption VARCHAR NOT NULL,
    severity INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    name VARCHAR NOT NULL,
    num_samples BIGINT NOT NULL,
    shard_bytes BIGINT NOT NULL,
    sha256 VARCHAR NOT NULL,
    PRIMARY KEY (benchmark, shard_set, corruption, severity, sequence, name)
);
COMMENT ON TABLE shards IS 'One row for each tar file of each shard set';

CREATE TABLE evaluations (
    run_id VARCHAR NOT NULL,
    sequence INTEGER NOT NULL,
    benchmark VARCHAR NOT NULL,
    experiment VARCHAR NOT NULL,
    model VARCHAR NOT NULL,
    weights VARCHAR NOT NULL,
    weights_sha256 VARCHAR NOT NULL,
    mean DOUBLE[] NOT NULL,
    std DOUBLE[] NOT NULL,
    method VARCHAR NOT NULL,
    protocol VARCHAR NOT NULL,
    corruption VARCHAR NOT NULL,
    severity INTEGER NOT NULL CHECK (severity BETWEEN 0 AND 5),
    generated BOOLEAN NOT NULL,
    seed BIGINT NOT NULL,
    fingerprint VARCHAR NOT NULL,
    num_samples BIGINT NOT NULL CHECK (num_samples > 0),
    num_correct BIGINT NOT NULL CHECK (num_correct BETWEEN 0 AND num_samples),
    error DOUBLE NOT NULL CHECK (error BETWEEN 0 AND 1),
    ece DOUBLE NOT NULL CHECK (ece BETWEEN 0 AND 1),
    bin_counts BIGINT[] NOT NULL,
    bin_confidence_sums DOUBLE[] NOT NULL,
    bin_correct_counts BIGINT[] NOT NULL,
    order_hash VARCHAR NOT NULL,
    predictions_sha256 VARCHAR NOT NULL,
    manifest_sha256 VARCHAR NOT NULL,
    device VARCHAR NOT NULL,
    batch_size INTEGER NOT NULL CHECK (batch_size > 0),
    precision VARCHAR,
    compile VARCHAR,
    num_batches INTEGER NOT NULL,
    metadata_scan_s DOUBLE NOT NULL CHECK (isfinite(metadata_scan_s)),
    pipeline_setup_s DOUBLE NOT NULL CHECK (isfinite(pipeline_setup_s)),
    time_to_first_batch_s DOUBLE NOT NULL CHECK (isfinite(time_to_first_batch_s)),
    first_batch_compute_s DOUBLE NOT NULL CHECK (isfinite(first_batch_compute_s)),
    wall_s DOUBLE NOT NULL CHECK (isfinite(wall_s)),
    images_per_s DOUBLE NOT NULL CHECK (isfinite(images_per_s)),
    data_wait_s DOUBLE NOT NULL CHECK (isfinite(data_wait_s)),
    host_to_device_s DOUBLE CHECK (isfinite(host_to_device_s)),
    compute_s DOUBLE NOT NULL CHECK (isfinite(compute_s)),
    peak_cuda_gib DOUBLE,
    peak_rss_gib DOUBLE NOT NULL,
    num_forwards BIGINT NOT NULL,
    num_backwards BIGINT NOT NULL,
    num_updates BIGINT NOT NULL,
    num_resets BIGINT NOT NULL,
    num_nonfinite_batches BIGINT NOT NULL,
    diverged BOOLEAN NOT NULL,
    started_at TIMESTAMPTZ NOT NULL,
    versions JSON NOT NULL,
    config JSON NOT NULL,
    PRIMARY KEY (benchmark, experiment, corruption, severity, sequence)
);
COMMENT ON TABLE evaluations IS 'One row for each pass of one experiment over one cell; clean data is corruption clean, severity 0';
COMMENT ON COLUMN evaluations.sequence IS 'Position among the evaluations of this cell by this experiment; the highest is the latest';
COMMENT ON COLUMN evaluations.error IS 'Top-1 error in [0, 1]';
COMMENT ON COLUMN evaluations.ece IS 'Expected calibration error in [0, 1], 15 equal-width bins of top-1 confidence, L1';
COMMENT ON COLUMN evaluations.bin_counts IS 'Samples in each confidence bin; sums over cells give exact calibration of their union';
COMMENT ON COLUMN evaluations.metadata_scan_s IS 'Reading the manifest and making sure that the shards are the ones it describes';
COMMENT ON COLUMN evaluations.pipeline_setup_s IS 'Constructing the stream';
COMMENT ON COLUMN evaluations.time_to_first_batch_s IS 'From the start of the pass until the first batch is there';
COMMENT ON COLUMN evaluations.first_batch_compute_s IS 'Computation of the first batch, cold caches included';
COMMENT ON COLUMN evaluations.host_to_device_s IS 'Copies to the device, which on CUDA go on beside computation; 0 on a CPU';
COMMENT ON COLUMN evaluations.precision IS 'Of the forward pass: fp32, or what autocast casts to';
COMMENT ON COLUMN evaluations.compile IS 'Mode of torch.compile, or off';
COMMENT ON COLUMN evaluations.wall_s IS 'The whole pass, fetching and computing';
COMMENT ON COLUMN evaluations.images_per_s IS 'num_samples / wall_s';
COMMENT ON COLUMN evaluations.diverged IS 'A batch had a logit that is no finite number: the error is that of a broken model';

CREATE TABLE evaluation_batches (
    benchmark VARCHAR NOT NULL,
    experiment VARCHAR NOT NULL,
    corruption VARCHAR NOT NULL,
    severity INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    batch INTEGER NOT NULL,
    num_samples INTEGER NOT NULL,
    data_wait_s DOUBLE NOT NULL,
    host_to_device_s DOUBLE,
    compute_s DOUBLE NOT NULL
);
COMMENT ON TABLE evaluation_batches IS 'Where the time of each batch of each evaluation went';

CREATE TABLE loader_benchmarks (
    run_id VARCHAR NOT NULL,
    sequence INTEGER NOT NULL,
    benchmark VARCHAR NOT NULL,
    corruption VARCHAR NOT NULL,
    severity INTEGER NOT NULL CHECK (severity BETWEEN 0 AND 5),
    manifest_sha256 VARCHAR NOT NULL,
    loader VARCHAR NOT NULL,
    version VARCHAR NOT NULL,
    output VARCHAR NOT NULL,
    num_threads INTEGER NOT NULL,
    num_processes INTEGER NOT NULL,
    batch_size INTEGER NOT NULL CHECK (batch_size > 0),
    normalization VARCHAR NOT NULL,
    device VARCHAR NOT NULL,
    format VARCHAR NOT NULL,
    image_size INTEGER NOT NULL,
    num_samples BIGINT NOT NULL CHECK (num_samples > 0),
    payload_bytes BIGINT NOT NULL,
    repeats INTEGER NOT NULL CHECK (repeats > 0),
    images_per_s DOUBLE NOT NULL CHECK (isfinite(images_per_s)),
    images_per_s_min DOUBLE NOT NULL,
    images_per_s_max DOUBLE NOT NULL,
    images_per_s_of_repeats DOUBLE[] NOT NULL,
    time_to_first_batch_s DOUBLE NOT NULL CHECK (isfinite(time_to_first_batch_s)),
    time_to_first_batch_s_min DOUBLE NOT NULL,
    time_to_first_batch_s_max DOUBLE NOT NULL,
    cpu_s_per_image DOUBLE NOT NULL CHECK (isfinite(cpu_s_per_image)),
    mb_per_s DOUBLE NOT NULL CHECK (isfinite(mb_per_s)),
    peak_memory_mib DOUBLE NOT NULL,
    base_memory_mib DOUBLE NOT NULL,
    started_at TIMESTAMPTZ NOT NULL,
    versions JSON NOT NULL,
    PRIMARY KEY (benchmark, corruption, severity, sequence, loader)
);
COMMENT ON TABLE loader_benchmarks IS 'One row for each loader measured on a cell without a model: medians of the repeats';
COMMENT ON COLUMN loader_benchmarks.version IS 'Of the package that the loader is from';
COMMENT ON COLUMN loader_benchmarks.output IS 'What its batches hold: uint8, or float32 normalised in the loader';
COMMENT ON COLUMN loader_benchmarks.num_threads IS 'Threads or worker processes, the fastest number of those tried';
COMMENT ON COLUMN loader_benchmarks.normalization IS 'Where images are normalised: own, as each system does; host; device';
COMMENT ON COLUMN loader_benchmarks.images_per_s IS 'Samples / seconds from constructing the loader to its end; of several processes sum of samples / longest time';
COMMENT ON COLUMN loader_benchmarks.time_to_first_batch_s IS 'From constructing the loader; imports and the reading of the manifest come before';
COMMENT ON COLUMN loader_benchmarks.cpu_s_per_image IS 'User and system time of the process and its workers';
COMMENT ON COLUMN loader_benchmarks.mb_per_s IS 'Of image files, in 10^6 bytes';
COMMENT ON COLUMN loader_benchmarks.peak_memory_mib IS 'Anonymous and shared memory of the process and its workers';
COMMENT ON COLUMN loader_benchmarks.base_memory_mib IS 'The same before the loader is constructed, everything imported';

CREATE VIEW latest_evaluations AS
SELECT * FROM evaluations
QUALIFY row_number() OVER (PARTITION BY benchmark, experiment, corruption, severity, seed ORDER BY sequence DESC) = 1;
COMMENT ON VIEW latest_evaluations IS 'The newest evaluation of each cell by each experiment';

CREATE VIEW corruption_errors AS
SELECT
    benchmark, experiment, corruption,
    count(*) AS num_cells,
    avg(error) AS mean_error,
    max(error) FILTER (severity = 5) AS error_at_5,
    avg(ece) AS mean_ece,
    list(error ORDER BY severity) AS errors_by_severity
FROM latest_evaluations
WHERE severity > 0
GROUP BY ALL;
COMMENT ON VIEW corruption_errors IS 'Mean error of each experiment under each corruption, over the severities that were evaluated';

CREATE VIEW leaderboard AS
SELECT
    benchmark, experiment, model, method, protocol,
    count(*) FILTER (severity > 0) AS num_cells,
    avg(error) FILTER (severity > 0) AS mean_error,
    avg(error) FILTER (severity = 5) AS mean_error_at_5,
    max(error) FILTER (corruption = 'clean') AS clean_error,
    avg(ece) FILTER (severity > 0) AS mean_ece,
    sum(num_samples) / sum(wall_s) AS images_per_s,
    sum(data_wait_s) / sum(wall_s) AS data_wait_share,
    sum(num_forwards) / sum(num_samples) AS forwards_per_sample,
    sum(num_backwards) / sum(num_samples) AS backwards_per_sample,
    count(*) FILTER (diverged) AS num_diverged,
    bool_or(generated) AS generated
FROM latest_evaluations
GROUP BY ALL
ORDER BY benchmark, mean_error;
COMMENT ON VIEW leaderboard IS 'One row for each experiment, best mean error first; compare only rows of equal num_cells';

CREATE VIEW throughput_history AS
SELECT
    benchmark, experiment, device, batch_size, corruption, severity, sequence, run_id, started_at,
    images_per_s, data_wait_s / wall_s AS data_wait_share, peak_cuda_gib, peak_rss_gib
FROM evaluations
ORDER BY benchmark, experiment, corruption, severity, sequence;
COMMENT ON VIEW throughput_history IS 'Every evaluation ever made, for plots of speed over runs';

CREATE VIEW run_comparison AS
SELECT
    a.benchmark, a.experiment, a.corruption, a.severity,
    a.run_id AS run_a, b.run_id AS run_b,
    a.error AS error_a, b.error AS error_b, b.error - a.error AS error_change,
    a.images_per_s AS images_per_s_a, b.images_per_s AS images_per_s_b, b.images_per_s / a.images_per_s AS speed_ratio,
    a.device AS device_a, b.device AS device_b,
    a.predictions_sha256 = b.predictions_sha256 AS same_predictions
FROM evaluations a
JOIN evaluations b USING (benchmark, experiment, corruption, severity, seed)
WHERE a.run_id <> b.run_id;
COMMENT ON VIEW run_comparison IS 'The same cells in two runs side by side; filter by run_a and run_b';
