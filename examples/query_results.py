"""Query the database of results. The result is an Arrow table; `.to_pandas()` converts it into a DataFrame.

    python examples/query_results.py data

prints

    tent    11.2% over 75 cells
    norm    11.3% over 75 cells
    source  35.8% over 75 cells
"""

import sys

import tta_pipeline as tta


def main(data_root: str) -> None:
    """Print the three best experiments of the leaderboard."""
    best = tta.query(
        "SELECT experiment, mean_error, num_cells FROM leaderboard WHERE num_cells >= ? ORDER BY mean_error LIMIT 3",
        [1],
        data_root=data_root,
    )
    for row in best.to_pylist():
        print(f"{row['experiment']:7} {row['mean_error']:.1%} over {row['num_cells']} cells")


if __name__ == "__main__":
    main(*sys.argv[1:])
