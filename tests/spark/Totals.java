// The program of docs/programs.md in Java, with Arrow's library and Jackson, which Spark brings along.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.List;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.BigIntVector;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VarCharVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;

public class Totals {
  static final ObjectMapper JSON = new ObjectMapper();
  static final OutputStream OUT = new BufferedOutputStream(new FileOutputStream(FileDescriptor.out));
  static final DataInputStream IN = new DataInputStream(new BufferedInputStream(System.in));
  static final BufferAllocator MEMORY = new RootAllocator();
  static final TreeMap<String, Long> TOTALS = new TreeMap<>();

  public static void main(String[] arguments) throws Exception {
    for (JsonNode message = next(); message != null; message = next()) {
      byte[] body = new byte[message.path("bytes").asInt()];
      IN.readFully(body);
      switch (message.get("verb").asText()) {
        case "open" -> {
          TOTALS.clear();
          added(body);
        }
        case "recv" -> {
          ObjectNode send = JSON.createObjectNode().put("verb", "send").set("time", message.get("time"));
          answer(send, table(added(body)));
        }
        case "checkpoint" ->
            answer(JSON.createObjectNode().put("verb", "state").put("table", true), table(TOTALS.keySet()));
        default -> {}
      }
      answer(JSON.createObjectNode().put("verb", "done").put("version", 1), new byte[0]);
      OUT.flush();
    }
  }

  static JsonNode next() throws Exception {
    ByteArrayOutputStream line = new ByteArrayOutputStream();
    for (int c = IN.read(); c != '\n'; c = IN.read()) {
      if (c < 0) return null;
      line.write(c);
    }
    return JSON.readTree(line.toByteArray());
  }

  static void answer(ObjectNode head, byte[] body) throws Exception {
    OUT.write((JSON.writeValueAsString(head.put("bytes", body.length)) + "\n").getBytes(StandardCharsets.UTF_8));
    OUT.write(body);
  }

  /** Adds a table of keys and numbers to the totals; returns its keys. */
  static Collection<String> added(byte[] body) throws Exception {
    TreeSet<String> keys = new TreeSet<>();
    if (body.length == 0) return keys;
    try (ArrowStreamReader reader = new ArrowStreamReader(new ByteArrayInputStream(body), MEMORY)) {
      while (reader.loadNextBatch()) {
        VectorSchemaRoot batch = reader.getVectorSchemaRoot();
        for (int i = 0; i < batch.getRowCount(); i++) {
          String key = batch.getVector(0).getObject(i).toString();
          keys.add(key);
          TOTALS.merge(key, ((Number) batch.getVector(1).getObject(i)).longValue(), Long::sum);
        }
      }
    }
    return keys;
  }

  static byte[] table(Collection<String> keys) throws Exception {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    try (VarCharVector names = new VarCharVector("key", MEMORY);
        BigIntVector totals = new BigIntVector("total", MEMORY)) {
      int i = 0;
      for (String key : keys) {
        names.setSafe(i, key.getBytes(StandardCharsets.UTF_8));
        totals.setSafe(i++, TOTALS.get(key));
      }
      names.setValueCount(i);
      totals.setValueCount(i);
      try (VectorSchemaRoot batch = new VectorSchemaRoot(List.<FieldVector>of(names, totals));
          ArrowStreamWriter writer = new ArrowStreamWriter(batch, null, bytes)) {
        writer.start();
        writer.writeBatch();
      }
    }
    return bytes.toByteArray();
  }
}
