"""Tags of Dagster's runs that this project sets or reads, as they stand in every history."""

RANGE_START = "dagster/asset_partition_range_start"
RANGE_END = "dagster/asset_partition_range_end"
RETRY_ON_FAILURE = "dagster/retry_on_asset_or_op_failure"
WILL_RETRY = "dagster/will_retry"
AUTO_RETRY_RUN_ID = "dagster/auto_retry_run_id"
GRPC_INFO = ".dagster/grpc_info"
MAX_RETRIES = "dagster/max_retries"
