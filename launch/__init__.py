"""launch starts: hostfiles, mpirun command lines, the doctor, the virtual lab, benchmarks."""
