-- The tables of `metrics.duckdb` that are not declared by record fields (see schema.py). All tables are derived: every row
-- comes from a result file, and a database made with another schema text is rebuilt automatically. A test checks that
-- every table, column, view and macro has a comment.

CREATE TABLE publication (schema_version VARCHAR NOT NULL, published_at_ns BIGINT NOT NULL, shard_sets_sha256 VARCHAR NOT NULL);
COMMENT ON TABLE publication IS 'One row: what this database was made from and when; a database with another schema is rebuilt from the results';
COMMENT ON COLUMN publication.schema_version IS 'Hash of the text of tables and views together';
COMMENT ON COLUMN publication.published_at_ns IS 'Time when a publication last changed the file, equal to its modification time; if another program has written to it since, its rows are compared with contents';
COMMENT ON COLUMN publication.shard_sets_sha256 IS 'Hash of the rows that were read from shard sets';

CREATE TABLE contents (name VARCHAR NOT NULL, num_rows BIGINT NOT NULL, checksum HUGEINT NOT NULL);
COMMENT ON TABLE contents IS 'Content of each table after the last publication, to detect rows that another program changed, removed or duplicated';
COMMENT ON COLUMN contents.name IS 'Name of the table';
COMMENT ON COLUMN contents.num_rows IS 'Number of its rows';
COMMENT ON COLUMN contents.checksum IS 'Sum of the hashes of its rows';

CREATE TABLE results (
    file VARCHAR NOT NULL,
    source VARCHAR,
    kind VARCHAR NOT NULL,
    sha256 VARCHAR NOT NULL,
    size_bytes BIGINT NOT NULL,
    fingerprint VARCHAR,
    previous VARCHAR,
    finished_at VARCHAR NOT NULL,
    device VARCHAR,
    versions JSON NOT NULL,
    void VARCHAR
);
COMMENT ON TABLE results IS 'One row for each result file';
COMMENT ON COLUMN results.file IS 'Path relative to the data root';
COMMENT ON COLUMN results.source IS 'Name under which results of others were added; NULL for your own results';
COMMENT ON COLUMN results.kind IS 'evaluation, training, tuning or loaders';
COMMENT ON COLUMN results.sha256 IS 'sha256 of the file, whose first digits are in its name';
COMMENT ON COLUMN results.size_bytes IS 'Size of the file';
COMMENT ON COLUMN results.fingerprint IS 'sha256 of everything that determines the result; NULL for loaders';
COMMENT ON COLUMN results.previous IS 'sha256 of the file of the segment before it in its stream; NULL for the first';
COMMENT ON COLUMN results.finished_at IS 'Time at which it was measured, UTC';
COMMENT ON COLUMN results.device IS 'Device of the computation; NULL except for evaluations';
COMMENT ON COLUMN results.versions IS 'Versions of Python, platform, host and packages';
COMMENT ON COLUMN results.void IS 'Why it counts nowhere; NULL if it may count';

CREATE TABLE plans (
    file VARCHAR NOT NULL PRIMARY KEY,
    sha256 VARCHAR NOT NULL,
    benchmark VARCHAR NOT NULL,
    dataset VARCHAR NOT NULL,
    experiment VARCHAR NOT NULL,
    source VARCHAR,
    file_sha256 VARCHAR NOT NULL,
    num_asked BIGINT NOT NULL,
    num_cells_asked BIGINT NOT NULL,
    num_in_mean BIGINT NOT NULL,
    own_files JSON NOT NULL
);
COMMENT ON TABLE plans IS 'One row for each experiment: the results that it requires, as of the last run';
COMMENT ON COLUMN plans.file IS 'Path relative to the data root';
COMMENT ON COLUMN plans.sha256 IS 'sha256 of the plan';
COMMENT ON COLUMN plans.benchmark IS 'Name of the benchmark and of its file';
COMMENT ON COLUMN plans.dataset IS 'Name of the dataset';
COMMENT ON COLUMN plans.experiment IS 'Name of the experiment';
COMMENT ON COLUMN plans.source IS 'Name under which results of others were added; NULL for your own results';
COMMENT ON COLUMN plans.file_sha256 IS 'sha256 of the benchmark file when the plan was made';
COMMENT ON COLUMN plans.num_asked IS 'Cells of the experiment, each as often as its streams visit it';
COMMENT ON COLUMN plans.num_cells_asked IS 'Cells of one seed that count in the mean';
COMMENT ON COLUMN plans.own_files IS 'sha256 of each file of a user''s own method, by its path from the data root';
COMMENT ON COLUMN plans.num_in_mean IS 'Corruptions or splits of the dataset that count in its mean';

CREATE TABLE set_aside (file VARCHAR NOT NULL PRIMARY KEY, size_bytes BIGINT NOT NULL, reason VARCHAR NOT NULL);
COMMENT ON TABLE set_aside IS 'Damaged or foreign files among the results, which this database leaves out';
COMMENT ON COLUMN set_aside.file IS 'Path relative to the data root';
COMMENT ON COLUMN set_aside.size_bytes IS 'Size of the file';
COMMENT ON COLUMN set_aside.reason IS 'Problem of the file';

CREATE TABLE mce_baselines (
    baseline VARCHAR NOT NULL,
    corruption VARCHAR NOT NULL,
    severity INTEGER NOT NULL CHECK (severity >= 0),
    error DOUBLE NOT NULL CHECK (error BETWEEN 0 AND 1),
    source VARCHAR NOT NULL,
    PRIMARY KEY (baseline, corruption, severity)
);
COMMENT ON TABLE mce_baselines IS 'Errors of AlexNet on ImageNet-C, which normalise mCE; constants, not measured here';
COMMENT ON COLUMN mce_baselines.baseline IS 'alexnet-full for all 50,000 images of a cell, alexnet-5k for RobustBench''s list of 5,000';
COMMENT ON COLUMN mce_baselines.corruption IS 'Name of the corruption, or clean';
COMMENT ON COLUMN mce_baselines.severity IS 'Severity, from 1; 0 for clean images and sets without severities';
COMMENT ON COLUMN mce_baselines.error IS 'Top-1 error in [0, 1]';
COMMENT ON COLUMN mce_baselines.source IS 'Publication of the error';

CREATE TABLE published_means (
    shift_group VARCHAR NOT NULL,
    datasets VARCHAR NOT NULL,
    num_cells INTEGER NOT NULL CHECK (num_cells > 0),
    severity INTEGER NOT NULL CHECK (severity >= 0),
    weights VARCHAR NOT NULL,
    method VARCHAR NOT NULL,
    error DOUBLE NOT NULL CHECK (error BETWEEN 0 AND 1),
    source VARCHAR NOT NULL,
    PRIMARY KEY (shift_group, weights, method, source)
);
COMMENT ON TABLE published_means IS 'Published mean errors over groups of datasets; constants, not measured here';
COMMENT ON COLUMN published_means.shift_group IS 'Group of the sets';
COMMENT ON COLUMN published_means.datasets IS 'Names of the sets in alphabetical order, with commas between them';
COMMENT ON COLUMN published_means.num_cells IS 'Number of cells of all these sets';
COMMENT ON COLUMN published_means.severity IS 'Severity of the cells; 0 for sets without severities';
COMMENT ON COLUMN published_means.weights IS 'Weights of the model, as in evaluations';
COMMENT ON COLUMN published_means.method IS 'Name of the method here';
COMMENT ON COLUMN published_means.error IS 'Mean over the sets of the top-1 error in [0, 1]';
COMMENT ON COLUMN published_means.source IS 'Publication of the error';

CREATE TABLE shard_sets (
    run_id VARCHAR NOT NULL,
    benchmark VARCHAR NOT NULL,
    dataset VARCHAR NOT NULL,
    corruption VARCHAR NOT NULL,
    severity INTEGER NOT NULL CHECK (severity >= 0),
    source_kind VARCHAR NOT NULL,
    generated BOOLEAN NOT NULL,
    manifest_sha256 VARCHAR NOT NULL,
    order_hash VARCHAR NOT NULL,
    stored_order VARCHAR NOT NULL,
    num_classes INTEGER NOT NULL CHECK (num_classes > 0),
    num_classes_found INTEGER NOT NULL CHECK (num_classes_found BETWEEN 1 AND num_classes),
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
    PRIMARY KEY (benchmark, dataset, corruption, severity)
);
COMMENT ON TABLE shard_sets IS 'One row for each shard set: the content of one cell and the cost of making it';
COMMENT ON COLUMN shard_sets.run_id IS 'Dagster run that built the shard set';
COMMENT ON COLUMN shard_sets.benchmark IS 'Name of the benchmark and of its file';
COMMENT ON COLUMN shard_sets.dataset IS 'Name of the dataset';
COMMENT ON COLUMN shard_sets.corruption IS 'Name of the corruption, clean, or train';
COMMENT ON COLUMN shard_sets.severity IS 'Severity, from 1; 0 for clean images, training images and sets without severities';
COMMENT ON COLUMN shard_sets.source_kind IS 'Kind of the benchmark''s source of images';
COMMENT ON COLUMN shard_sets.generated IS 'Whether this project made the corrupted images; if so, errors are not comparable with published tables';
COMMENT ON COLUMN shard_sets.manifest_sha256 IS 'Identity of the shard set: a hash of the shards, labels and order in manifest.json, equal on every machine for equal shards';
COMMENT ON COLUMN shard_sets.order_hash IS 'sha256 of the samples'' keys in stored order';
COMMENT ON COLUMN shard_sets.stored_order IS 'Order of the samples in the shards, with its seed';
COMMENT ON COLUMN shard_sets.num_classes IS 'Number of classes in the class map';
COMMENT ON COLUMN shard_sets.num_classes_found IS 'Classes with at least one image';
COMMENT ON COLUMN shard_sets.num_samples IS 'Number of images';
COMMENT ON COLUMN shard_sets.num_shards IS 'Number of tar files';
COMMENT ON COLUMN shard_sets.payload_bytes IS 'Size of the image files';
COMMENT ON COLUMN shard_sets.shard_bytes IS 'Size of the tar files';
COMMENT ON COLUMN shard_sets.num_inodes IS 'Number of shards, manifest files and their folder';
COMMENT ON COLUMN shard_sets.num_loose_inodes IS 'Number of images, class folders and the folder of the cell';
COMMENT ON COLUMN shard_sets.inode_reduction IS 'num_loose_inodes / num_inodes';
COMMENT ON COLUMN shard_sets.write_wall_s IS 'Seconds to read the source and write its shards, including fsync; NULL for shards made elsewhere';
COMMENT ON COLUMN shard_sets.write_images_per_s IS 'num_samples / write_wall_s';
COMMENT ON COLUMN shard_sets.read_back_wall_s IS 'Seconds to read the shards back, hash every sample and publish the manifest';
COMMENT ON COLUMN shard_sets.started_at IS 'Start time in UTC, for display; never used for ordering';
COMMENT ON COLUMN shard_sets.versions IS 'Versions of Python, platform, host and packages';

CREATE TABLE class_results (
    file VARCHAR NOT NULL,
    corruption VARCHAR NOT NULL,
    severity INTEGER NOT NULL,
    num_samples INTEGER[] NOT NULL CHECK (len(num_samples) > 0),
    num_correct INTEGER[] NOT NULL CHECK (len(num_correct) = len(num_samples))
);
COMMENT ON TABLE class_results IS 'Counts by class of each evaluation; the view class_errors has a row for each class';
COMMENT ON COLUMN class_results.file IS 'As in evaluations; file, corruption and severity are the key';
COMMENT ON COLUMN class_results.corruption IS 'As in evaluations';
COMMENT ON COLUMN class_results.severity IS 'As in evaluations';
COMMENT ON COLUMN class_results.num_samples IS 'Samples of each class, in the order of the class map; element 1 is label 0';
COMMENT ON COLUMN class_results.num_correct IS 'Correct predictions of each class';

CREATE TABLE batch_results (
    file VARCHAR NOT NULL,
    corruption VARCHAR NOT NULL,
    severity INTEGER NOT NULL,
    num_samples INTEGER[] NOT NULL CHECK (len(num_samples) > 0),
    data_wait_s DOUBLE[] NOT NULL CHECK (len(data_wait_s) = len(num_samples)),
    host_to_device_s DOUBLE[] NOT NULL CHECK (len(host_to_device_s) = len(num_samples)),
    compute_s DOUBLE[] NOT NULL CHECK (len(compute_s) = len(num_samples)),
    num_correct INTEGER[] NOT NULL CHECK (len(num_correct) = len(num_samples)),
    num_unadapted INTEGER[] CHECK (len(num_unadapted) = len(num_samples)),
    num_resets INTEGER[] CHECK (len(num_resets) = len(num_samples)),
    num_unknown INTEGER[] CHECK (len(num_unknown) = len(num_samples)),
    mean_entropy DOUBLE[] CHECK (len(mean_entropy) = len(num_samples)),
    mean_confidence DOUBLE[] CHECK (len(mean_confidence) = len(num_samples)),
    predicted_class_entropy DOUBLE[] NOT NULL CHECK (len(predicted_class_entropy) = len(num_samples)),
    source_agreement DOUBLE[] CHECK (len(source_agreement) = len(num_samples))
);
COMMENT ON TABLE batch_results IS 'Time and correct predictions of each batch, in lists; the view evaluation_batches has a row for each batch';
COMMENT ON COLUMN batch_results.file IS 'As in evaluations; file, corruption and severity are the key';
COMMENT ON COLUMN batch_results.corruption IS 'As in evaluations';
COMMENT ON COLUMN batch_results.severity IS 'As in evaluations';
COMMENT ON COLUMN batch_results.num_samples IS 'Samples of each batch, in the order of the pass';
COMMENT ON COLUMN batch_results.data_wait_s IS 'Seconds until the stream delivered each batch';
COMMENT ON COLUMN batch_results.host_to_device_s IS 'Copy of each batch to the device, which on CUDA overlaps computation; 0 on a CPU';
COMMENT ON COLUMN batch_results.compute_s IS 'Forward pass and adaptation of each batch';
COMMENT ON COLUMN batch_results.num_correct IS 'Correct predictions of each batch';
COMMENT ON COLUMN batch_results.num_unadapted IS 'Samples of each batch that were predicted without adaptation, for lack of time or because of adapt; NULL if there are none';
COMMENT ON COLUMN batch_results.num_resets IS 'Resets of the method at each batch; NULL if there are none';
COMMENT ON COLUMN batch_results.num_unknown IS 'Unknown samples of each batch, which count as neither correct nor wrong; NULL if there are none';
COMMENT ON COLUMN batch_results.mean_entropy IS 'Mean entropy of the predictions of each batch, in nats; NULL if a logit is not finite';
COMMENT ON COLUMN batch_results.mean_confidence IS 'Mean maximum softmax of each batch; NULL if a logit is not finite';
COMMENT ON COLUMN batch_results.predicted_class_entropy IS 'Entropy of the shares of the predicted classes of each batch, in nats';
COMMENT ON COLUMN batch_results.source_agreement IS 'Share of the predictions of each batch that the source model shares; NULL unless the method computes both';

CREATE TABLE loader_benchmarks (
    file VARCHAR NOT NULL,
    run_id VARCHAR NOT NULL,
    benchmark VARCHAR NOT NULL,
    dataset VARCHAR NOT NULL,
    corruption VARCHAR NOT NULL,
    severity INTEGER NOT NULL CHECK (severity >= 0),
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
    time_to_first_batch_s DOUBLE NOT NULL CHECK (time_to_first_batch_s >= 0 AND isfinite(time_to_first_batch_s)),
    cpu_s_per_image DOUBLE NOT NULL CHECK (cpu_s_per_image >= 0 AND isfinite(cpu_s_per_image)),
    mb_per_s DOUBLE NOT NULL CHECK (mb_per_s >= 0 AND isfinite(mb_per_s)),
    peak_memory_mib DOUBLE NOT NULL CHECK (isfinite(peak_memory_mib)),
    base_memory_mib DOUBLE NOT NULL CHECK (isfinite(base_memory_mib)),
    started_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (file, loader, num_threads)
);
COMMENT ON TABLE loader_benchmarks IS 'One row for each loader measured on a cell without a model: medians of the repeats';
COMMENT ON COLUMN loader_benchmarks.run_id IS 'Dagster run that measured the loader';
COMMENT ON COLUMN loader_benchmarks.file IS 'File of the result, relative to the data root';
COMMENT ON COLUMN loader_benchmarks.benchmark IS 'Name of the benchmark and of its file';
COMMENT ON COLUMN loader_benchmarks.dataset IS 'Name of the dataset';
COMMENT ON COLUMN loader_benchmarks.corruption IS 'Name of the corruption, or clean';
COMMENT ON COLUMN loader_benchmarks.severity IS 'Severity, from 1; 0 for clean images and sets without severities';
COMMENT ON COLUMN loader_benchmarks.manifest_sha256 IS 'Identity of the shard set that was read; see shard_sets';
COMMENT ON COLUMN loader_benchmarks.loader IS 'Name of the loader; indexed is this project''s own';
COMMENT ON COLUMN loader_benchmarks.version IS 'Version of the loader''s package';
COMMENT ON COLUMN loader_benchmarks.output IS 'Content of the batches: uint8, or float32 normalised in the loader';
COMMENT ON COLUMN loader_benchmarks.num_threads IS 'Threads or worker processes; the fastest of the numbers tried';
COMMENT ON COLUMN loader_benchmarks.num_processes IS 'Number of processes, each of which reads a part of the samples';
COMMENT ON COLUMN loader_benchmarks.batch_size IS 'Samples in a batch';
COMMENT ON COLUMN loader_benchmarks.normalization IS 'Where images are normalised: own, as each system does; host; device';
COMMENT ON COLUMN loader_benchmarks.device IS 'Destination of the batches: cpu, or a kind of accelerator such as cuda';
COMMENT ON COLUMN loader_benchmarks.format IS 'Format of the shards: raw image files, or tensors';
COMMENT ON COLUMN loader_benchmarks.image_size IS 'Height and width in pixels';
COMMENT ON COLUMN loader_benchmarks.num_samples IS 'Samples of one pass';
COMMENT ON COLUMN loader_benchmarks.payload_bytes IS 'Size of the image files of one pass';
COMMENT ON COLUMN loader_benchmarks.staging_mb_per_s IS 'Speed of copying the shards to node-local disk first; NULL if they are read in place';
COMMENT ON COLUMN loader_benchmarks.repeats IS 'Passes, each in its own process';
COMMENT ON COLUMN loader_benchmarks.images_per_s IS 'Samples / seconds from constructing the loader to its end; with several processes, sum of samples / longest time';
COMMENT ON COLUMN loader_benchmarks.images_per_s_min IS 'Speed of the slowest repeat';
COMMENT ON COLUMN loader_benchmarks.images_per_s_max IS 'Speed of the fastest repeat';
COMMENT ON COLUMN loader_benchmarks.time_to_first_batch_s IS 'Seconds from constructing the loader, after imports and reading the manifest';
COMMENT ON COLUMN loader_benchmarks.cpu_s_per_image IS 'User and system time of the process and its workers, per image';
COMMENT ON COLUMN loader_benchmarks.mb_per_s IS 'Speed of reading image files, in 10^6 bytes per second';
COMMENT ON COLUMN loader_benchmarks.peak_memory_mib IS 'Peak anonymous and shared memory of the process and its workers';
COMMENT ON COLUMN loader_benchmarks.base_memory_mib IS 'As peak_memory_mib, but after all imports and before the loader is constructed';
COMMENT ON COLUMN loader_benchmarks.started_at IS 'Start time in UTC, for display; never used for ordering';
