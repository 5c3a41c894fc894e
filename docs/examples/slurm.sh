#!/bin/bash
#SBATCH --job-name=calibayes
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=8
#SBATCH --time=01:00:00
#SBATCH --requeue

srun --kill-on-bad-exit=1 \
    calibayes fit /shared/table.parquet --target y --seed 0 \
    --checkpoint /shared/run.ckpt --report /shared/report.html
