// Graph kernels by GraphX, computed anew for each of the first $EPOCHS epochs of the trace in $TRACE, one kernel of
// $KERNELS (separated by blanks) after the other: spark-shell -i kernels.scala
// Tells the seconds, from the epoch's file to the values of all nodes, and a digest: how many nodes have a value,
// and the sum of the values, each times node % 1009 + 1. The first time counts not: it finds a cold JVM.

import org.apache.spark.HashPartitioner
import org.apache.spark.graphx._
import org.apache.spark.graphx.lib.{PageRank, TriangleCount}
import org.apache.spark.rdd.RDD

object Kernels {
  type Edges = RDD[((Long, Long), Long)]
  type Values = RDD[(Long, Double)]
  val partitioner = new HashPartitioner(spark.sparkContext.defaultParallelism)
  val none: Edges = spark.sparkContext.emptyRDD[((Long, Long), Long)].partitionBy(partitioner)
  // Pregel as in GraphX's guide: the least sum of weights from the root
  def paths(graph: Graph[Int, Int], weight: EdgeTriplet[Double, Int] => Double): Values = {
    val root = 0L // not a field: closures would take the whole shell with them
    val start = graph.mapVertices((node, _) => if (node == root) 0.0 else Double.PositiveInfinity)
    val found = start.pregel(Double.PositiveInfinity, activeDirection = EdgeDirection.Out)(
      (_, near, other) => math.min(near, other),
      edge => {
        val there = edge.srcAttr + weight(edge)
        if (there < edge.dstAttr) Iterator((edge.dstId, there)) else Iterator.empty
      },
      (one, other) => math.min(one, other))
    found.vertices.filter(!_._2.isInfinite)
  }

  // org.apache.spark.graphx.lib.LabelPropagation, but of several labels the least wins, as Graphalytics has it
  def labels(graph: Graph[Int, Int], iterations: Int): Values = {
    val start = graph.mapVertices((node, _) => node)
    val found = Pregel(start, Map.empty[Long, Long], iterations)(
      (_, label, counts) => if (counts.isEmpty) label else counts.minBy(c => (-c._2, c._1))._1,
      edge => Iterator((edge.srcId, Map(edge.dstAttr -> 1L)), (edge.dstId, Map(edge.srcAttr -> 1L))),
      (one, other) => (one.keySet ++ other.keySet)
        .map(label => label -> (one.getOrElse(label, 0L) + other.getOrElse(label, 0L))).toMap)
    found.vertices.mapValues(_.toDouble)
  }

  def clustering(graph: Graph[Int, Int]): Values = {
    val links = graph.edges.filter(edge => edge.srcId != edge.dstId)
      .map(edge => (math.min(edge.srcId, edge.dstId), math.max(edge.srcId, edge.dstId))).distinct()
    val canonical = Graph.fromEdgeTuples(links, 1).partitionBy(PartitionStrategy.RandomVertexCut).cache()
    val triangles = TriangleCount.runPreCanonicalized(canonical).vertices
    triangles.innerJoin(canonical.degrees) { (_, count, degree) =>
      if (degree < 2) 0.0 else 2.0 * count / (degree.toDouble * (degree - 1))
    }
  }

  def run(kernel: String, graph: Graph[Int, Int]): Values = kernel.split(":") match {
    case Array("BFS") => paths(graph, _ => 1.0)
    case Array("SSSP") => paths(graph, edge => ((edge.srcId * 31 + edge.dstId * 17) % 99 + 1).toDouble)
    case Array("WCC") => graph.connectedComponents().vertices.mapValues(_.toDouble)
    case Array("CDLP", iterations) => labels(graph, iterations.toInt)
    case Array("LCC") => clustering(graph)
    case Array("PR", iterations) => PageRank.run(graph, iterations.toInt).vertices
    case Array("PRtol", tolerance) => PageRank.runUntilConvergence(graph, tolerance.toDouble).vertices
  }

  def epoch(kernel: String, edges: Edges, file: String): Edges = {
    val began = System.nanoTime
    val changes = spark.read.parquet(file).rdd
      .map(row => ((row.getLong(0), row.getLong(1)), row.getLong(2))).partitionBy(partitioner)
    val updated = edges.union(changes).reduceByKey(partitioner, _ + _).filter(_._2 > 0).cache()
    val values = run(kernel, Graph.fromEdgeTuples(updated.keys, 0)).cache()
    val nodes = values.count()
    val seconds = (System.nanoTime - began) / 1e9
    val digest = values.map { case (node, value) => (node % 1009 + 1) * value }.sum
    val total = values.map(_._2).sum
    println(s"""{"kernel": "$kernel", "seconds": $seconds, "nodes": $nodes, "digest": $digest, "total": $total}""")
    spark.sparkContext.getPersistentRDDs.values.filter(_.id != updated.id).foreach(_.unpersist())
    updated
  }

  def main(): Unit = {
    val files = new java.io.File(sys.env("TRACE")).listFiles.map(_.getPath).filter(_.endsWith(".parquet")).sorted
    sys.env("KERNELS").split(" ").zipWithIndex.foreach { case (kernel, number) =>
      if (number == 0) scala.Console.withOut(scala.Console.err) { epoch(kernel, none, files.head).unpersist() }
      files.take(sys.env("EPOCHS").toInt).foldLeft(none)(epoch(kernel, _, _)).unpersist()
    }
  }
}

Kernels.main()
