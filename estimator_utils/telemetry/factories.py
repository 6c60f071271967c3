from estimator_utils.telemetry import open_source  # noqa

FORMS = "sysfs[:ROOT], jtop, tegrastats[:FILE], smi:FILE, replay:DATA, or auto"
