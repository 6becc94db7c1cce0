"""Settings of sessions that live for seconds."""

from __future__ import annotations

#: No code is made for queries that run once: that was a third of what the JVM did. Programs that are run as
#: users run them (pages, notebooks, jobs by spark-submit) have Spark's own settings.
SHORT = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
}
