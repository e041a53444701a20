# Apache Kafka: a node that is broker and controller (KRaft), jars by Maven. A set that needs other
# properties gives them in WAYHOLD_KAFKA_PROPERTIES, one a line. A node is a cluster by itself, unless
# WAYHOLD_KAFKA_CLUSTER tells of one ("ID PORT:CONTROLLER_PORT ...", a pair for each node), of which it
# is number WAYHOLD_KAFKA_NODE. WAYHOLD_KAFKA_HEAP is most memory of its Java.

kafka_version=4.4.0
# With its command line tools, which `scripts/verify/kafka-tools` runs.
kafka_jars=$cache/kafka-$kafka_version-tools

kafka_install() {
    require_java
    install_missing
    [ ! -f "$kafka_jars/complete" ] || return 0
    require_command mvn maven
    install_missing
    echo "fetching Apache Kafka $kafka_version into $kafka_jars" >&2
    mkdir -p "$cache"
    local work
    work=$(mktemp -d "$cache/fetch.XXXXXX")
    cat >"$work/pom.xml" <<END
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>wayhold</groupId>
  <artifactId>services</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>$kafka_version</version>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka-tools</artifactId>
      <version>$kafka_version</version>
      <!-- Those that are run need nothing that the broker does not bring. -->
      <exclusions>
        <exclusion>
          <groupId>*</groupId>
          <artifactId>*</artifactId>
        </exclusion>
      </exclusions>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId>
      <artifactId>slf4j-simple</artifactId>
      <version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
END
    if ! timeout 600 mvn -B -q -f "$work/pom.xml" \
        org.apache.maven.plugins:maven-dependency-plugin:3.9.0:copy-dependencies \
        -DincludeScope=runtime -DoutputDirectory="$work/jars" >"$work/log" 2>&1; then
        tail -n 20 "$work/log" >&2
        rm -rf "$work"
        fail 1 "Maven could not fetch Apache Kafka $kafka_version"
    fi
    # Whole or not at all: another run may be fetching, too.
    touch "$work/jars/complete"
    rm -rf "$kafka_jars"
    mv -T "$work/jars" "$kafka_jars" 2>/dev/null || [ -f "$kafka_jars/complete" ]
    rm -rf "$work"
}

kafka_prepare() {
    local dir=$1 node=${WAYHOLD_KAFKA_NODE:-1} cluster number port controller_port voters=""
    read -ra cluster <<<"${WAYHOLD_KAFKA_CLUSTER:-$(kafka_cluster_of_one)}"
    for number in "${!cluster[@]}"; do
        [ "$number" = 0 ] || voters+=,$number@127.0.0.1:${cluster[$number]#*:}
    done
    port=${cluster[$node]%:*}
    controller_port=${cluster[$node]#*:}
    echo "$port" >"$dir/port"
    cat >"$dir/server.properties" <<END
process.roles=broker,controller
node.id=$node
controller.quorum.voters=${voters#,}
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$controller_port
advertised.listeners=PLAINTEXT://127.0.0.1:$port
controller.listener.names=CONTROLLER
log.dirs=$dir/data
num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
# Events of long ago keep their own time and must not be cleaned away for it.
log.retention.ms=-1
${WAYHOLD_KAFKA_PROPERTIES:-}
END
    java -cp "$kafka_jars/*" kafka.tools.StorageTool format \
        --cluster-id "${cluster[0]}" --config "$dir/server.properties" >>"$dir/log" 2>&1 || {
        tail -n 20 "$dir/log" >&2
        fail 1 "Kafka's storage could not be made"
    }
}

kafka_cluster_of_one() {
    local id port controller_port
    id=W$(head -c 32 /dev/urandom | base64 -w0 | tr -d '+/=' | cut -c1-20)A
    port=$(free_port)
    controller_port=$(free_port)
    while [ "$controller_port" = "$port" ]; do controller_port=$(free_port); done
    echo "$id $port:$controller_port"
}

kafka_command() {
    command=(java "-Xmx${WAYHOLD_KAFKA_HEAP:-512m}" -Xms128m -XX:+UseSerialGC -XX:TieredStopAtLevel=1
        -Dorg.slf4j.simpleLogger.showDateTime=true
        -Dorg.slf4j.simpleLogger.defaultLogLevel=warn
        -cp "$kafka_jars/*" kafka.Kafka "$1/server.properties")
}

kafka_answers() {
    port_answers "$(cat "$1/port" 2>/dev/null || echo 0)"
}

kafka_env() {
    echo "export WAYHOLD_TEST_KAFKA=127.0.0.1:$(cat "$1/port")"
}
