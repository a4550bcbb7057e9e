"""Tags of Dagster's runs that this project sets or reads, as they stand in every history."""

RANGE_START = "dagster/asset_partition_range_start"
RANGE_END = "dagster/asset_partition_range_end"
GRPC_INFO = ".dagster/grpc_info"
MAX_RETRIES = "dagster/max_retries"
