"""DEFINE: functions come in, a checked registry of job types goes out."""
