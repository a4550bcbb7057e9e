-- The tables of `metrics.duckdb`. They are derived: every row comes from a result record, and a database made with
-- another text of this file, views.sql or baselines.sql is made anew by itself. A test holds that every table, column,
-- view and macro has a comment.

-- In the canonical order, by which ORDER BY corruption sorts; any other name is refused.
CREATE TYPE corruption AS ENUM (
    'clean', 'train',
    'gaussian_noise', 'shot_noise', 'impulse_noise', 'defocus_blur', 'glass_blur', 'motion_blur', 'zoom_blur',
    'snow', 'frost', 'fog', 'brightness', 'contrast', 'elastic_transform', 'pixelate', 'jpeg_compression',
    'speckle_noise', 'gaussian_blur', 'spatter', 'saturate'
);

CREATE TABLE schema_version (version VARCHAR NOT NULL);
COMMENT ON TABLE schema_version IS 'One row; a database of another version is made anew from the records';
COMMENT ON COLUMN schema_version.version IS 'Hash of the text of tables and views together';

CREATE TABLE ingested (
    folder VARCHAR NOT NULL,
    sequence INTEGER NOT NULL CHECK (sequence > 0)
);
COMMENT ON TABLE ingested IS 'Result records that are in this database; folder and sequence are the key';
COMMENT ON COLUMN ingested.folder IS 'Of the records of one thing, relative to the data root';
COMMENT ON COLUMN ingested.sequence IS 'Number of the record in its folder, from 1';

CREATE TABLE corruptions (
    corruption corruption PRIMARY KEY,
    category VARCHAR NOT NULL CHECK (category IN ('noise', 'blur', 'weather', 'digital', 'extra')),
    is_common BOOLEAN NOT NULL
);
COMMENT ON TABLE corruptions IS 'The 19 corruptions of ImageNet-C (Hendrycks & Dietterich 2019)';
COMMENT ON COLUMN corruptions.corruption IS 'Name; sorts in the canonical order';
COMMENT ON COLUMN corruptions.category IS 'The archive of Zenodo record 2235448 that holds it';
COMMENT ON COLUMN corruptions.is_common IS 'Whether it is one of the 15 that mCE is defined over';

CREATE TABLE mce_baselines (
    baseline VARCHAR NOT NULL,
    corruption corruption NOT NULL,
    severity INTEGER NOT NULL CHECK (severity BETWEEN 0 AND 5),
    error DOUBLE NOT NULL CHECK (error BETWEEN 0 AND 1),
    source VARCHAR NOT NULL,
    PRIMARY KEY (baseline, corruption, severity)
);
COMMENT ON TABLE mce_baselines IS 'Errors of AlexNet on ImageNet-C, by which mCE is normalised; constants, not measured here';
COMMENT ON COLUMN mce_baselines.baseline IS 'alexnet-full for all 50,000 images of a cell, alexnet-5k for RobustBench''s list of 5,000';
COMMENT ON COLUMN mce_baselines.corruption IS 'Corruption, or clean';
COMMENT ON COLUMN mce_baselines.severity IS '1 to 5; 0 for clean images';
COMMENT ON COLUMN mce_baselines.error IS 'Top-1 error in [0, 1]';
COMMENT ON COLUMN mce_baselines.source IS 'Where the number is published';

CREATE TABLE shard_sets (
    run_id VARCHAR NOT NULL,
    sequence INTEGER NOT NULL CHECK (sequence > 0),
    benchmark VARCHAR NOT NULL,
    shard_set VARCHAR NOT NULL,
    corruption corruption NOT NULL,
    severity INTEGER NOT NULL CHECK (severity BETWEEN 0 AND 5),
    source_kind VARCHAR NOT NULL,
    generated BOOLEAN NOT NULL,
    manifest_sha256 VARCHAR NOT NULL,
    class_map_sha256 VARCHAR NOT NULL,
    order_hash VARCHAR NOT NULL,
    num_classes INTEGER NOT NULL CHECK (num_classes > 0),
    num_samples BIGINT NOT NULL CHECK (num_samples > 0),
    num_shards INTEGER NOT NULL CHECK (num_shards > 0),
    payload_bytes BIGINT NOT NULL CHECK (payload_bytes > 0),
    shard_bytes BIGINT NOT NULL CHECK (shard_bytes > 0),
    num_inodes INTEGER NOT NULL CHECK (num_inodes > 0),
    num_loose_inodes INTEGER NOT NULL CHECK (num_loose_inodes > 0),
    inode_reduction DOUBLE NOT NULL CHECK (inode_reduction > 0 AND isfinite(inode_reduction)),
    write_wall_s DOUBLE CHECK (write_wall_s >= 0 AND isfinite(write_wall_s)),
    write_images_per_s DOUBLE CHECK (write_images_per_s >= 0 AND isfinite(write_images_per_s)),
    read_back_wall_s DOUBLE NOT NULL CHECK (read_back_wall_s >= 0 AND isfinite(read_back_wall_s)),
    started_at TIMESTAMPTZ NOT NULL,
    versions JSON NOT NULL,
    PRIMARY KEY (benchmark, shard_set, corruption, severity, sequence)
);
COMMENT ON TABLE shard_sets IS 'One row for each manifest built: what one cell holds and what it took to make it';
COMMENT ON COLUMN shard_sets.run_id IS 'Dagster run that built it';
COMMENT ON COLUMN shard_sets.sequence IS 'Position among the manifests built for this cell; the highest is the latest';
COMMENT ON COLUMN shard_sets.benchmark IS 'Benchmark, as its file is called';
COMMENT ON COLUMN shard_sets.shard_set IS 'The transform that made the set from the benchmark''s first one, which is called shards';
COMMENT ON COLUMN shard_sets.corruption IS 'Corruption, clean, or train';
COMMENT ON COLUMN shard_sets.severity IS '1 to 5; 0 for clean images and training images';
COMMENT ON COLUMN shard_sets.source_kind IS 'Where the images come from: the kind of the benchmark''s source';
COMMENT ON COLUMN shard_sets.generated IS 'Whether this project made the corrupted images; errors then compare with no published table';
COMMENT ON COLUMN shard_sets.manifest_sha256 IS 'Of manifest.json, which has the hash of every shard and of the sample index';
COMMENT ON COLUMN shard_sets.class_map_sha256 IS 'Of the class names in the order of their labels';
COMMENT ON COLUMN shard_sets.order_hash IS 'sha256 of the samples'' keys in stored order';
COMMENT ON COLUMN shard_sets.num_classes IS 'Classes of the class map';
COMMENT ON COLUMN shard_sets.num_samples IS 'Images';
COMMENT ON COLUMN shard_sets.num_shards IS 'Tar files';
COMMENT ON COLUMN shard_sets.payload_bytes IS 'Of the image files';
COMMENT ON COLUMN shard_sets.shard_bytes IS 'Of the tar files';
COMMENT ON COLUMN shard_sets.num_inodes IS 'Shards, manifest files and their folder';
COMMENT ON COLUMN shard_sets.num_loose_inodes IS 'Images, class folders and the folder of the cell';
COMMENT ON COLUMN shard_sets.inode_reduction IS 'num_loose_inodes / num_inodes';
COMMENT ON COLUMN shard_sets.write_wall_s IS 'Seconds to read the source and write its shards, fsync included; NULL for shards that somebody else made';
COMMENT ON COLUMN shard_sets.write_images_per_s IS 'num_samples / write_wall_s';
COMMENT ON COLUMN shard_sets.read_back_wall_s IS 'Seconds to read the shards back, hash every sample and publish the manifest';
COMMENT ON COLUMN shard_sets.started_at IS 'UTC, for people; never for order';
COMMENT ON COLUMN shard_sets.versions IS 'Python, platform, host and packages';

CREATE TABLE shards (
    benchmark VARCHAR NOT NULL,
    shard_set VARCHAR NOT NULL,
    corruption corruption NOT NULL,
    severity INTEGER NOT NULL CHECK (severity BETWEEN 0 AND 5),
    sequence INTEGER NOT NULL CHECK (sequence > 0),
    name VARCHAR NOT NULL,
    num_samples BIGINT NOT NULL CHECK (num_samples > 0),
    shard_bytes BIGINT NOT NULL CHECK (shard_bytes > 0),
    sha256 VARCHAR NOT NULL,
    PRIMARY KEY (benchmark, shard_set, corruption, severity, sequence, name)
);
COMMENT ON TABLE shards IS 'One row for each tar file of each shard set';
COMMENT ON COLUMN shards.benchmark IS 'Benchmark, as its file is called';
COMMENT ON COLUMN shards.shard_set IS 'As in shard_sets';
COMMENT ON COLUMN shards.corruption IS 'Corruption, clean, or train';
COMMENT ON COLUMN shards.severity IS '1 to 5; 0 for clean images and training images';
COMMENT ON COLUMN shards.sequence IS 'As in shard_sets';
COMMENT ON COLUMN shards.name IS 'File name in the folder of the cell';
COMMENT ON COLUMN shards.num_samples IS 'Images in it';
COMMENT ON COLUMN shards.shard_bytes IS 'Size of the file';
COMMENT ON COLUMN shards.sha256 IS 'Of the file';

CREATE TABLE evaluations (
    run_id VARCHAR NOT NULL,
    sequence INTEGER NOT NULL CHECK (sequence > 0),
    is_latest BOOLEAN NOT NULL DEFAULT TRUE,
    benchmark VARCHAR NOT NULL,
    experiment VARCHAR NOT NULL,
    model VARCHAR NOT NULL,
    weights VARCHAR NOT NULL,
    weights_sha256 VARCHAR NOT NULL,
    mean DOUBLE[] NOT NULL,
    std DOUBLE[] NOT NULL,
    method VARCHAR NOT NULL,
    protocol VARCHAR NOT NULL,
    subset VARCHAR NOT NULL DEFAULT 'all',
    subset_sha256 VARCHAR,
    stream VARCHAR NOT NULL,
    position INTEGER NOT NULL DEFAULT 0 CHECK (position >= 0),
    corruption corruption NOT NULL,
    severity INTEGER NOT NULL CHECK (severity BETWEEN 0 AND 5),
    generated BOOLEAN NOT NULL,
    seed BIGINT NOT NULL,
    fingerprint VARCHAR NOT NULL,
    metrics_version INTEGER NOT NULL DEFAULT 1 CHECK (metrics_version > 0),
    num_samples BIGINT NOT NULL CHECK (num_samples > 0),
    num_correct BIGINT NOT NULL CHECK (num_correct BETWEEN 0 AND num_samples),
    num_correct_top5 BIGINT CHECK (num_correct_top5 BETWEEN num_correct AND num_samples),
    error DOUBLE NOT NULL CHECK (error BETWEEN 0 AND 1),
    top5_error DOUBLE CHECK (top5_error BETWEEN 0 AND 1),
    nll DOUBLE CHECK (nll >= 0 AND isfinite(nll)),
    brier DOUBLE CHECK (brier BETWEEN 0 AND 2.00001),
    ece DOUBLE NOT NULL CHECK (ece BETWEEN 0 AND 1),
    max_calibration_error DOUBLE CHECK (max_calibration_error BETWEEN 0 AND 1),
    rms_calibration_error DOUBLE CHECK (rms_calibration_error BETWEEN 0 AND 1),
    bin_counts BIGINT[] NOT NULL,
    bin_confidence_sums DOUBLE[] NOT NULL,
    bin_correct_counts BIGINT[] NOT NULL,
    order_hash VARCHAR NOT NULL,
    predictions_sha256 VARCHAR NOT NULL,
    manifest_sha256 VARCHAR NOT NULL,
    device VARCHAR NOT NULL,
    batch_size INTEGER NOT NULL CHECK (batch_size > 0),
    precision VARCHAR CHECK (precision IN ('fp32', 'bf16', 'fp16')),
    compile VARCHAR CHECK (compile IN ('off', 'default', 'reduce-overhead', 'max-autotune')),
    num_batches INTEGER NOT NULL CHECK (num_batches > 0),
    staging_s DOUBLE CHECK (staging_s >= 0 AND isfinite(staging_s)),
    metadata_scan_s DOUBLE NOT NULL CHECK (metadata_scan_s >= 0 AND isfinite(metadata_scan_s)),
    pipeline_setup_s DOUBLE NOT NULL CHECK (pipeline_setup_s >= 0 AND isfinite(pipeline_setup_s)),
    time_to_first_batch_s DOUBLE NOT NULL CHECK (time_to_first_batch_s >= 0 AND isfinite(time_to_first_batch_s)),
    first_batch_compute_s DOUBLE NOT NULL CHECK (first_batch_compute_s >= 0 AND isfinite(first_batch_compute_s)),
    wall_s DOUBLE NOT NULL CHECK (wall_s > 0 AND isfinite(wall_s)),
    images_per_s DOUBLE NOT NULL CHECK (images_per_s > 0 AND isfinite(images_per_s)),
    data_wait_s DOUBLE NOT NULL CHECK (data_wait_s >= 0 AND isfinite(data_wait_s)),
    host_to_device_s DOUBLE CHECK (host_to_device_s >= 0 AND isfinite(host_to_device_s)),
    compute_s DOUBLE NOT NULL CHECK (compute_s >= 0 AND isfinite(compute_s)),
    peak_cuda_gib DOUBLE CHECK (peak_cuda_gib >= 0 AND isfinite(peak_cuda_gib)),
    peak_rss_gib DOUBLE NOT NULL CHECK (peak_rss_gib >= 0 AND isfinite(peak_rss_gib)),
    num_forwards BIGINT NOT NULL CHECK (num_forwards >= 0),
    num_backwards BIGINT NOT NULL CHECK (num_backwards >= 0),
    num_adapted_samples BIGINT CHECK (num_adapted_samples >= 0),
    num_unadapted BIGINT CHECK (num_unadapted >= 0),
    num_updates BIGINT NOT NULL CHECK (num_updates >= 0),
    num_resets BIGINT NOT NULL CHECK (num_resets >= 0),
    num_nonfinite_batches BIGINT NOT NULL CHECK (num_nonfinite_batches >= 0),
    num_predicted_classes INTEGER CHECK (num_predicted_classes > 0),
    diverged BOOLEAN NOT NULL,
    started_at TIMESTAMPTZ NOT NULL,
    versions JSON NOT NULL,
    config JSON NOT NULL,
    PRIMARY KEY (benchmark, experiment, subset, seed, stream, position, corruption, severity, sequence)
);
COMMENT ON TABLE evaluations IS 'One row for each pass of one experiment over one cell; a cell that a stream visits twice has two';
COMMENT ON COLUMN evaluations.run_id IS 'Dagster run that made it';
COMMENT ON COLUMN evaluations.sequence IS 'Number of the record in its folder; of evaluations of the same thing the highest is the latest';
COMMENT ON COLUMN evaluations.is_latest IS 'Whether no later one of the same experiment, subset, seed, stream, position and cell is there; kept up when records are added';
COMMENT ON COLUMN evaluations.benchmark IS 'Benchmark, as its file is called';
COMMENT ON COLUMN evaluations.experiment IS 'Model, method and protocol together, as the benchmark file calls them';
COMMENT ON COLUMN evaluations.model IS 'Model, as the benchmark file calls it';
COMMENT ON COLUMN evaluations.weights IS 'Which weights';
COMMENT ON COLUMN evaluations.weights_sha256 IS 'Of the weights';
COMMENT ON COLUMN evaluations.mean IS 'Subtracted from each channel of images in [0, 1]';
COMMENT ON COLUMN evaluations.std IS 'Divided by';
COMMENT ON COLUMN evaluations.method IS 'Adaptation method; source adapts nothing';
COMMENT ON COLUMN evaluations.protocol IS 'In which order samples come and when the method is reset';
COMMENT ON COLUMN evaluations.subset IS 'Which samples of the cell; all, unless the experiment takes some. Rows of different subsets never compare';
COMMENT ON COLUMN evaluations.subset_sha256 IS 'Of the subset''s samples; NULL where it is all';
COMMENT ON COLUMN evaluations.stream IS 'Partition key of what was streamed without starting over: a cell as fog|5, a severity, or all';
COMMENT ON COLUMN evaluations.position IS 'Of the visit to this cell in the stream, from 0; a gradual stream visits most cells twice';
COMMENT ON COLUMN evaluations.corruption IS 'Corruption, or clean';
COMMENT ON COLUMN evaluations.severity IS '1 to 5; 0 for clean images';
COMMENT ON COLUMN evaluations.generated IS 'Whether this project made the corrupted images; errors then compare with no published table';
COMMENT ON COLUMN evaluations.seed IS 'Of method and stream; rows that differ in it alone are runs of one experiment';
COMMENT ON COLUMN evaluations.fingerprint IS 'sha256 of all that decides the predictions: settings, weights, kind of device, data';
COMMENT ON COLUMN evaluations.metrics_version IS 'Of the definitions in docs/metrics.md; 1 had error and ece only';
COMMENT ON COLUMN evaluations.num_samples IS 'Samples evaluated, each once';
COMMENT ON COLUMN evaluations.num_correct IS 'Whose predicted class is the label';
COMMENT ON COLUMN evaluations.num_correct_top5 IS 'With fewer than five classes above the label; NULL in records of metrics version 1';
COMMENT ON COLUMN evaluations.error IS 'Top-1 error in [0, 1]: 1 - num_correct / num_samples';
COMMENT ON COLUMN evaluations.top5_error IS 'Top-5 error in [0, 1]: 1 - num_correct_top5 / num_samples';
COMMENT ON COLUMN evaluations.nll IS 'Mean negative log-likelihood of the labels, in nats; NULL where one is infinite or no number';
COMMENT ON COLUMN evaluations.brier IS 'Mean squared distance of the probabilities from the one-hot label, in [0, 2]; NULL where one is no number';
COMMENT ON COLUMN evaluations.ece IS 'Expected calibration error in [0, 1], 15 equal-width bins of top-1 confidence, L1';
COMMENT ON COLUMN evaluations.max_calibration_error IS 'Largest |accuracy - confidence| of the 15 bins, often called MCE';
COMMENT ON COLUMN evaluations.rms_calibration_error IS 'Root of the mean over samples of (accuracy - confidence)^2 of their bin, often called RMSCE';
COMMENT ON COLUMN evaluations.bin_counts IS 'Samples in each confidence bin; sums over cells give exact calibration of their union';
COMMENT ON COLUMN evaluations.bin_confidence_sums IS 'Sum of the confidences in each bin';
COMMENT ON COLUMN evaluations.bin_correct_counts IS 'Correct predictions in each bin';
COMMENT ON COLUMN evaluations.order_hash IS 'sha256 of the samples'' keys in stream order';
COMMENT ON COLUMN evaluations.predictions_sha256 IS 'Of the predicted labels in stream order, int64 little-endian';
COMMENT ON COLUMN evaluations.manifest_sha256 IS 'Of the manifest of the shard set that was read';
COMMENT ON COLUMN evaluations.device IS 'What computed: cpu, or the name of the CUDA device';
COMMENT ON COLUMN evaluations.batch_size IS 'Samples in a batch; the last may have fewer';
COMMENT ON COLUMN evaluations.precision IS 'Of the forward pass: fp32, or what autocast casts to';
COMMENT ON COLUMN evaluations.compile IS 'Mode of torch.compile, or off';
COMMENT ON COLUMN evaluations.num_batches IS 'Batches of the pass';
COMMENT ON COLUMN evaluations.staging_s IS 'Copying the shards to node-local disk, while the cell before computed if there was one; 0 if read in place';
COMMENT ON COLUMN evaluations.metadata_scan_s IS 'Reading the manifest and making sure that the shards are the ones it describes';
COMMENT ON COLUMN evaluations.pipeline_setup_s IS 'Constructing the stream';
COMMENT ON COLUMN evaluations.time_to_first_batch_s IS 'From the start of the pass until the first batch is there';
COMMENT ON COLUMN evaluations.first_batch_compute_s IS 'Computation of the first batch, cold caches included';
COMMENT ON COLUMN evaluations.wall_s IS 'The whole pass, fetching and computing';
COMMENT ON COLUMN evaluations.images_per_s IS 'num_samples / wall_s';
COMMENT ON COLUMN evaluations.data_wait_s IS 'Sum over the batches of the time until the stream delivered it';
COMMENT ON COLUMN evaluations.host_to_device_s IS 'Copies to the device, which on CUDA go on beside computation; 0 on a CPU';
COMMENT ON COLUMN evaluations.compute_s IS 'Sum over the batches of forward pass and adaptation';
COMMENT ON COLUMN evaluations.peak_cuda_gib IS 'Most device memory allocated during the pass, in 2^30 bytes; NULL on a CPU';
COMMENT ON COLUMN evaluations.peak_rss_gib IS 'Most memory the process ever had resident, in 2^30 bytes';
COMMENT ON COLUMN evaluations.num_forwards IS 'Samples that went forward through the model, views and second passes included';
COMMENT ON COLUMN evaluations.num_backwards IS 'Samples that went backward';
COMMENT ON COLUMN evaluations.num_adapted_samples IS 'Samples that a loss was taken of, which papers call backwards';
COMMENT ON COLUMN evaluations.num_unadapted IS 'Samples predicted without adaptation, since the stream did not wait';
COMMENT ON COLUMN evaluations.num_updates IS 'Steps of the optimiser';
COMMENT ON COLUMN evaluations.num_resets IS 'How often the method went back to the source model by itself';
COMMENT ON COLUMN evaluations.num_nonfinite_batches IS 'Batches with a logit that is no finite number';
COMMENT ON COLUMN evaluations.num_predicted_classes IS 'Different classes among the predictions';
COMMENT ON COLUMN evaluations.diverged IS 'The error is that of a broken model: a batch had a logit that is no finite number, or adaptation ended in one class for everything';
COMMENT ON COLUMN evaluations.started_at IS 'UTC, for people; never for order';
COMMENT ON COLUMN evaluations.versions IS 'Python, platform, host and packages';
COMMENT ON COLUMN evaluations.config IS 'The experiment with all hyperparameters';

CREATE TABLE class_results (
    benchmark VARCHAR NOT NULL,
    experiment VARCHAR NOT NULL,
    subset VARCHAR NOT NULL DEFAULT 'all',
    seed BIGINT NOT NULL,
    stream VARCHAR NOT NULL,
    position INTEGER NOT NULL CHECK (position >= 0),
    corruption corruption NOT NULL,
    severity INTEGER NOT NULL CHECK (severity BETWEEN 0 AND 5),
    sequence INTEGER NOT NULL CHECK (sequence > 0),
    num_samples INTEGER[] NOT NULL CHECK (len(num_samples) > 0),
    num_correct INTEGER[] NOT NULL CHECK (len(num_correct) = len(num_samples)),
    PRIMARY KEY (benchmark, experiment, subset, seed, stream, position, corruption, severity, sequence)
);
COMMENT ON TABLE class_results IS 'Counts by class of each evaluation of metrics version 2 or later; the view class_errors has a row for each class';
COMMENT ON COLUMN class_results.benchmark IS 'As in evaluations';
COMMENT ON COLUMN class_results.experiment IS 'As in evaluations';
COMMENT ON COLUMN class_results.subset IS 'As in evaluations';
COMMENT ON COLUMN class_results.seed IS 'As in evaluations';
COMMENT ON COLUMN class_results.stream IS 'As in evaluations';
COMMENT ON COLUMN class_results.position IS 'As in evaluations';
COMMENT ON COLUMN class_results.corruption IS 'As in evaluations';
COMMENT ON COLUMN class_results.severity IS 'As in evaluations';
COMMENT ON COLUMN class_results.sequence IS 'As in evaluations';
COMMENT ON COLUMN class_results.num_samples IS 'Samples of each class, in the order of the class map; element 1 is label 0';
COMMENT ON COLUMN class_results.num_correct IS 'Correct predictions of each class';

CREATE TABLE evaluation_batches (
    benchmark VARCHAR NOT NULL,
    experiment VARCHAR NOT NULL,
    subset VARCHAR NOT NULL DEFAULT 'all',
    seed BIGINT NOT NULL,
    stream VARCHAR NOT NULL,
    position INTEGER NOT NULL CHECK (position >= 0),
    corruption corruption NOT NULL,
    severity INTEGER NOT NULL CHECK (severity BETWEEN 0 AND 5),
    sequence INTEGER NOT NULL CHECK (sequence > 0),
    batch INTEGER NOT NULL CHECK (batch >= 0),
    num_samples INTEGER NOT NULL CHECK (num_samples > 0),
    data_wait_s DOUBLE NOT NULL CHECK (data_wait_s >= 0 AND isfinite(data_wait_s)),
    host_to_device_s DOUBLE CHECK (host_to_device_s >= 0 AND isfinite(host_to_device_s)),
    compute_s DOUBLE NOT NULL CHECK (compute_s >= 0 AND isfinite(compute_s))
);
COMMENT ON TABLE evaluation_batches IS 'Where the time of each batch went. The key is that of evaluations and batch; no index, which would be larger than the rows';
COMMENT ON COLUMN evaluation_batches.benchmark IS 'As in evaluations';
COMMENT ON COLUMN evaluation_batches.experiment IS 'As in evaluations';
COMMENT ON COLUMN evaluation_batches.subset IS 'As in evaluations';
COMMENT ON COLUMN evaluation_batches.seed IS 'As in evaluations';
COMMENT ON COLUMN evaluation_batches.stream IS 'As in evaluations';
COMMENT ON COLUMN evaluation_batches.position IS 'As in evaluations';
COMMENT ON COLUMN evaluation_batches.corruption IS 'As in evaluations';
COMMENT ON COLUMN evaluation_batches.severity IS 'As in evaluations';
COMMENT ON COLUMN evaluation_batches.sequence IS 'As in evaluations';
COMMENT ON COLUMN evaluation_batches.batch IS 'Position in the pass, from 0';
COMMENT ON COLUMN evaluation_batches.num_samples IS 'Samples of the batch';
COMMENT ON COLUMN evaluation_batches.data_wait_s IS 'Until the stream delivered the batch';
COMMENT ON COLUMN evaluation_batches.host_to_device_s IS 'Its copy to the device, which on CUDA goes on beside computation; 0 on a CPU';
COMMENT ON COLUMN evaluation_batches.compute_s IS 'Forward pass and adaptation';

CREATE TABLE loader_benchmarks (
    run_id VARCHAR NOT NULL,
    sequence INTEGER NOT NULL CHECK (sequence > 0),
    benchmark VARCHAR NOT NULL,
    corruption corruption NOT NULL,
    severity INTEGER NOT NULL CHECK (severity BETWEEN 0 AND 5),
    manifest_sha256 VARCHAR NOT NULL,
    loader VARCHAR NOT NULL,
    version VARCHAR NOT NULL,
    output VARCHAR NOT NULL,
    num_threads INTEGER NOT NULL CHECK (num_threads >= 0),
    num_processes INTEGER NOT NULL CHECK (num_processes > 0),
    batch_size INTEGER NOT NULL CHECK (batch_size > 0),
    normalization VARCHAR NOT NULL CHECK (normalization IN ('own', 'host', 'device')),
    device VARCHAR NOT NULL,
    format VARCHAR NOT NULL,
    image_size INTEGER NOT NULL CHECK (image_size > 0),
    num_samples BIGINT NOT NULL CHECK (num_samples > 0),
    payload_bytes BIGINT NOT NULL CHECK (payload_bytes > 0),
    staging_mb_per_s DOUBLE CHECK (staging_mb_per_s >= 0 AND isfinite(staging_mb_per_s)),
    repeats INTEGER NOT NULL CHECK (repeats > 0),
    images_per_s DOUBLE NOT NULL CHECK (images_per_s > 0 AND isfinite(images_per_s)),
    images_per_s_min DOUBLE NOT NULL CHECK (images_per_s_min <= images_per_s),
    images_per_s_max DOUBLE NOT NULL CHECK (images_per_s_max >= images_per_s AND isfinite(images_per_s_max)),
    images_per_s_of_repeats DOUBLE[] NOT NULL,
    time_to_first_batch_s DOUBLE NOT NULL CHECK (time_to_first_batch_s >= 0 AND isfinite(time_to_first_batch_s)),
    time_to_first_batch_s_min DOUBLE NOT NULL,
    time_to_first_batch_s_max DOUBLE NOT NULL CHECK (isfinite(time_to_first_batch_s_max)),
    cpu_s_per_image DOUBLE NOT NULL CHECK (cpu_s_per_image >= 0 AND isfinite(cpu_s_per_image)),
    mb_per_s DOUBLE NOT NULL CHECK (mb_per_s >= 0 AND isfinite(mb_per_s)),
    peak_memory_mib DOUBLE NOT NULL CHECK (isfinite(peak_memory_mib)),
    base_memory_mib DOUBLE NOT NULL CHECK (isfinite(base_memory_mib)),
    started_at TIMESTAMPTZ NOT NULL,
    versions JSON NOT NULL,
    PRIMARY KEY (benchmark, corruption, severity, sequence, loader)
);
COMMENT ON TABLE loader_benchmarks IS 'One row for each loader measured on a cell without a model: medians of the repeats';
COMMENT ON COLUMN loader_benchmarks.run_id IS 'Dagster run that measured it';
COMMENT ON COLUMN loader_benchmarks.sequence IS 'Position among the measurements on this cell; the highest is the latest';
COMMENT ON COLUMN loader_benchmarks.benchmark IS 'Benchmark, as its file is called';
COMMENT ON COLUMN loader_benchmarks.corruption IS 'Corruption, or clean';
COMMENT ON COLUMN loader_benchmarks.severity IS '1 to 5; 0 for clean images';
COMMENT ON COLUMN loader_benchmarks.manifest_sha256 IS 'Of the manifest of the shard set that was read';
COMMENT ON COLUMN loader_benchmarks.loader IS 'Name; indexed is this project''s own';
COMMENT ON COLUMN loader_benchmarks.version IS 'Of the package that the loader is from';
COMMENT ON COLUMN loader_benchmarks.output IS 'What its batches hold: uint8, or float32 normalised in the loader';
COMMENT ON COLUMN loader_benchmarks.num_threads IS 'Threads or worker processes, the fastest number of those tried';
COMMENT ON COLUMN loader_benchmarks.num_processes IS 'Processes that each read a part';
COMMENT ON COLUMN loader_benchmarks.batch_size IS 'Samples in a batch';
COMMENT ON COLUMN loader_benchmarks.normalization IS 'Where images are normalised: own, as each system does; host; device';
COMMENT ON COLUMN loader_benchmarks.device IS 'Where batches end up: cpu, or cuda';
COMMENT ON COLUMN loader_benchmarks.format IS 'Of the shards: raw image files, or tensors';
COMMENT ON COLUMN loader_benchmarks.image_size IS 'Height and width in pixels';
COMMENT ON COLUMN loader_benchmarks.num_samples IS 'Samples of one pass';
COMMENT ON COLUMN loader_benchmarks.payload_bytes IS 'Of the image files of one pass';
COMMENT ON COLUMN loader_benchmarks.staging_mb_per_s IS 'Of shards copied to node-local disk first; NULL if read in place';
COMMENT ON COLUMN loader_benchmarks.repeats IS 'Passes, each in a process of its own';
COMMENT ON COLUMN loader_benchmarks.images_per_s IS 'Samples / seconds from constructing the loader to its end; of several processes sum of samples / longest time';
COMMENT ON COLUMN loader_benchmarks.images_per_s_min IS 'Slowest repeat';
COMMENT ON COLUMN loader_benchmarks.images_per_s_max IS 'Fastest repeat';
COMMENT ON COLUMN loader_benchmarks.images_per_s_of_repeats IS 'Each repeat, in order';
COMMENT ON COLUMN loader_benchmarks.time_to_first_batch_s IS 'From constructing the loader; imports and the reading of the manifest come before';
COMMENT ON COLUMN loader_benchmarks.time_to_first_batch_s_min IS 'Shortest of the repeats';
COMMENT ON COLUMN loader_benchmarks.time_to_first_batch_s_max IS 'Longest of the repeats';
COMMENT ON COLUMN loader_benchmarks.cpu_s_per_image IS 'User and system time of the process and its workers';
COMMENT ON COLUMN loader_benchmarks.mb_per_s IS 'Of image files, in 10^6 bytes';
COMMENT ON COLUMN loader_benchmarks.peak_memory_mib IS 'Anonymous and shared memory of the process and its workers';
COMMENT ON COLUMN loader_benchmarks.base_memory_mib IS 'The same before the loader is constructed, everything imported';
COMMENT ON COLUMN loader_benchmarks.started_at IS 'UTC, for people; never for order';
COMMENT ON COLUMN loader_benchmarks.versions IS 'Python, platform, host and packages';
